"""Suspend processes: a whole cgroup by the freezer of cgroup v2, or each process by SIGSTOP.

cgroup.freeze is documented in the kernel's admin-guide/cgroup-v2.rst; SIGKILL still ends a frozen process.  Version 1 is
not used.  What is frozen is stored before, and the next mpsd thaws what a killed one left so.  Prose: docs/ending.md.
"""

import errno
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
import trio

from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_FREEZE_SECONDS, _THAW_SECONDS = 2.0, 5.0
_LOOK_SECONDS = 0.02
_MOST_CGROUPS, _MOST_PROCESSES = 256, 1024  # 0.1 s; beyond that only the clients are stopped, one by one
_THREADS_OF_USER = 4
_STOPPED = "tT"
T = TypeVar("T")


class InThread(Protocol):
    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class FrozenNotes(Protocol):
    """Where mpsd stores what it has frozen: the path of a cgroup with its inode number, a pid with its start time."""

    def frozen(self) -> list[tuple[str, int]]: ...
    def save_frozen(self, name: str, mark: int) -> None: ...
    def forget_frozen(self, name: str) -> None: ...


class FreezerThreads:
    """Guards that the cgroups of one user take few threads, each until the kernel has answered.

    Users hold the lock that a write to cgroup.freeze takes, by many cgroups of their own that gain and lose a controller, and
    no signal ends that wait.  share_of: gives the users that count as one (fairness/uid_ranges.py) the same number.
    """

    def __init__(self, share_of: Callable[[int], int]) -> None:
        self._share_of = share_of
        self._own: dict[int, trio.CapacityLimiter] = {}  # by share; of users with threads

    async def run(self, uid: int, function: Callable[[], T]) -> T:
        """Return what the function returns; a caller that no longer waits leaves it to its thread."""
        share = self._share_of(uid)
        own = self._own.setdefault(share, trio.CapacityLimiter(_THREADS_OF_USER))
        try:
            return await run_in_thread(function, abandon_on_cancel=True, limiter=own)
        finally:
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._own.pop(share, None)


class CgroupFreezer:
    """Freezes one directory of the unified hierarchy.  Guards that only a cgroup that mpsd froze is thawed.

    in_thread: runs a function in a thread, which goes on if its caller no longer waits.
    """

    def __init__(self, directory: Path, notes: FrozenNotes, in_thread: InThread) -> None:
        self._directory, self._notes, self._in_thread = directory, notes, in_thread
        self._is_ours = self._is_wanted = False

    async def freeze(self) -> bool:
        """Freeze the cgroup.

        Returns False, without a change, if mpsd may not freeze it, it is frozen already, or it does not freeze in time.
        """
        try:
            with trio.fail_after(_FREEZE_SECONDS):
                if (inode := await self._in_thread(self._thawed_inode)) is None:
                    return False
                self._notes.save_frozen(str(self._directory), inode)
                self._is_ours = self._is_wanted = True
                await self._in_thread(self._write)
                while not await self._in_thread(self._is_frozen):  # noqa: ASYNC110  inotify is harder to get right
                    await trio.sleep(_LOOK_SECONDS)
        except OSError as exc:
            log.info("cgroup.not_frozen", cgroup=str(self._directory), why=exc.strerror)
            self._let_go()
            return False
        except trio.TooSlowError:
            log.info("cgroup.not_frozen", cgroup=str(self._directory), why=f"it is not frozen after {_FREEZE_SECONDS:g} s")
            await self.thaw()
            return False
        log.info("cgroup.frozen", cgroup=str(self._directory))
        return True

    async def thaw(self) -> bool:
        """Thaw the cgroup if mpsd froze it; return whether that is done.  Else the thread does it when the kernel answers."""
        if not self._is_ours:
            return True
        self._is_wanted = False
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _THAW_SECONDS):
            try:
                await self._in_thread(self._write)
            except OSError as exc:  # removed with its last process
                log.info("cgroup.not_thawed", cgroup=str(self._directory), why=exc.strerror)
            self._let_go()
            return True
        self._is_ours = False  # the note stays: if mpsd ends before that thread, the next one thaws
        log.error("cgroup.not_thawed", cgroup=str(self._directory), why=f"no answer within {_THAW_SECONDS:g} s")
        return False

    def _let_go(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._notes.forget_frozen(str(self._directory))

    async def pids(self) -> set[int]:
        """Return the pids of all processes that would be frozen.

        Raises OSError, also for more cgroups or processes than mpsd looks at: their user makes as many as the user likes.
        """
        try:
            with trio.fail_after(_FREEZE_SECONDS):
                return await self._in_thread(self._pids)
        except trio.TooSlowError:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None

    def _pids(self) -> set[int]:
        found: set[int] = set()
        waiting, count = [str(self._directory)], 1
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name == "cgroup.procs":
                        found.update(map(int, Path(entry.path).read_text().split()))
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        count += 1
                    if count > _MOST_CGROUPS or len(found) > _MOST_PROCESSES:
                        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        return found

    def _thawed_inode(self) -> int | None:
        """Return the cgroup's inode number; None if it is frozen already.  Raises OSError."""
        is_thawed = (self._directory / "cgroup.freeze").read_text().strip() == "0"
        return self._directory.stat().st_ino if is_thawed else None

    def _write(self) -> None:
        """Write what is wanted, until that is the same afterwards: mpsd may have given up by then.  Raises OSError."""
        written = None
        while written is not self._is_wanted:
            written = self._is_wanted
            (self._directory / "cgroup.freeze").write_text(f"{written:d}")

    def _is_frozen(self) -> bool:
        try:
            return "frozen 1" in (self._directory / "cgroup.events").read_text().splitlines()
        except OSError:
            return True  # it was removed


class SignalFreezer:
    """Freezes processes, each by its pidfd.  Guards that a process that was already stopped is not continued."""

    def __init__(self, notes: FrozenNotes) -> None:
        self._notes = notes
        self._ours: dict[ProcessId, int] = {}

    def freeze(self, process: ProcessId, pidfd: int) -> str:
        """Stop a process; return why it failed, empty on success."""
        if processes.state(process.pid) in _STOPPED:
            return ""
        self._notes.save_frozen(str(process.pid), process.start_time)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        except OSError as exc:
            self._notes.forget_frozen(str(process.pid))
            return f"SIGSTOP: {exc.strerror}"
        self._ours[process] = pidfd
        return ""

    def thaw(self, wanted: Iterable[ProcessId]) -> None:
        for process in wanted:
            pidfd = self._ours.pop(process, None)
            if pidfd is None:
                continue
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except OSError:
                pass  # it has ended; or it is another user's by now, which its user had continued: others are still frozen
            self._notes.forget_frozen(str(process.pid))


async def thaw_left(notes: FrozenNotes) -> None:
    """Thaw what an mpsd that was killed has left frozen.  Call it at the start, before anything is frozen.

    It leaves alone a later cgroup of the same path, and a later process with the same pid.
    """
    left = notes.frozen()
    limiter = trio.CapacityLimiter(len(left) + 1)
    with trio.move_on_after(_THAW_SECONDS):
        async with trio.open_nursery() as nursery:
            for name, mark in left:
                nursery.start_soon(_thaw_left, name, mark, notes, limiter)
    for name, _ in notes.frozen():  # the next mpsd tries again
        log.warning("stop.not_thawed", what=name, why=f"no answer within {_THAW_SECONDS:g} s")


async def _thaw_left(name: str, mark: int, notes: FrozenNotes, limiter: trio.CapacityLimiter) -> None:
    thaw = partial(_thaw_cgroup, Path(name), mark) if name.startswith("/") else partial(_continue, ProcessId(int(name), mark))
    try:
        if await run_in_thread(thaw, abandon_on_cancel=True, limiter=limiter):
            log.warning("stop.thawed", what=name, why="an earlier mpsd was killed while its clients drained")
    except OSError as exc:
        log.warning("stop.not_thawed", what=name, why=exc.strerror)
    notes.forget_frozen(name)


def _thaw_cgroup(directory: Path, inode: int) -> bool:
    """Return whether it was frozen.  Raises OSError."""
    freeze = directory / "cgroup.freeze"
    try:
        if directory.stat().st_ino != inode or freeze.read_text().strip() == "0":
            return False
    except FileNotFoundError:  # it was removed
        return False
    freeze.write_text("0")
    return True


def _continue(process: ProcessId) -> bool:
    """Return whether it was stopped.  Raises OSError."""
    pidfd = processes.open_pidfd(process)
    if pidfd is None:
        return False
    try:
        if processes.state(process.pid) not in f"{_STOPPED}?":
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
