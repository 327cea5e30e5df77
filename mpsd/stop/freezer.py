"""Suspend processes: a whole cgroup by the freezer of cgroup v2, or each process by SIGSTOP.

cgroup.freeze is documented in the kernel's admin-guide/cgroup-v2.rst; SIGKILL still ends a frozen process.  Version 1 is
not used.  What is frozen is stored before, and the next mpsd thaws what a killed one left so.  Prose: docs/ending.md.
"""

import errno
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import structlog
import trio

from mpsd.host import processes
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_FREEZE_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_MOST_CGROUPS, _MOST_PROCESSES = 256, 1024  # 0.1 s; beyond that only the clients are stopped, one by one
_STOPPED = "tT"


class FrozenNotes(Protocol):
    """Where mpsd stores what it has frozen: the path of a cgroup with its inode number, a pid with its start time."""

    def frozen(self) -> list[tuple[str, int]]: ...
    def save_frozen(self, name: str, mark: int) -> None: ...
    def forget_frozen(self, name: str) -> None: ...


class CgroupFreezer:
    """Freezes one directory of the unified hierarchy.  Guards that only a cgroup that mpsd froze is thawed."""

    def __init__(self, directory: Path, notes: FrozenNotes) -> None:
        self._directory, self._notes = directory, notes
        self._is_ours = False

    async def freeze(self) -> bool:
        """Freeze the cgroup.

        Returns False, without a change, if mpsd may not freeze it, it is frozen already, or it does not freeze in time.
        """
        try:
            if (self._directory / "cgroup.freeze").read_text().strip() != "0":
                return False
            self._notes.save_frozen(str(self._directory), self._directory.stat().st_ino)
            self._is_ours = True
            self._write("1")
        except OSError as exc:
            log.info("cgroup.not_frozen", cgroup=str(self._directory), why=exc.strerror)
            self._let_go()
            return False
        with trio.move_on_after(_FREEZE_SECONDS):
            while not self._is_frozen():  # noqa: ASYNC110  cgroup.events notifies by inotify, which is harder to get right
                await trio.sleep(_LOOK_SECONDS)
            log.info("cgroup.frozen", cgroup=str(self._directory))
            return True
        self.thaw()
        return False

    def thaw(self) -> None:
        if not self._is_ours:
            return
        try:
            self._write("0")
        except OSError as exc:  # removed with its last process
            log.info("cgroup.not_thawed", cgroup=str(self._directory), why=exc.strerror)
        self._let_go()

    def _let_go(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._notes.forget_frozen(str(self._directory))

    def pids(self) -> set[int]:
        """Return the pids of all processes that would be frozen.

        Raises OSError, also for more cgroups or processes than mpsd looks at: their user makes as many as the user likes.
        """
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

    def _write(self, text: str) -> None:
        (self._directory / "cgroup.freeze").write_text(text)

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


def thaw_left(notes: FrozenNotes) -> None:
    """Thaw what an mpsd that was killed has left frozen.  Call it at the start, before anything is frozen.

    It leaves alone a later cgroup of the same path, and a later process with the same pid.
    """
    for name, mark in notes.frozen():
        try:
            is_thawed = _thaw_cgroup(Path(name), mark) if name.startswith("/") else _continue(ProcessId(int(name), mark))
        except OSError as exc:
            log.warning("stop.not_thawed", what=name, why=exc.strerror)
        else:
            if is_thawed:
                log.warning("stop.thawed", what=name, why="an earlier mpsd was killed while its clients drained")
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
