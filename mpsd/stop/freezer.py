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
from mpsd.host.cgroup_directory import CgroupDirectory
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.model.cgroup_path import PartKind, parse_path
from mpsd.model.process import ProcessId
from mpsd.notify import Changed

log = structlog.get_logger()
_FREEZE_SECONDS, _THAW_SECONDS = 2.0, 5.0
_LOOK_SECONDS = 0.02
_AGAIN_SECONDS = 1.0
_EARLIER_SHARE, _EARLIER_SHARES = 0xFFFF0000, 64  # in place of users, whom an mpsd that starts does not know; no uids in use
_OWNERS = (PartKind.POD, PartKind.CONTAINER, PartKind.JOB)  # who is in one makes cgroups of any names below it
_OTHERS_PARTS = 5  # of /sys/fs/cgroup/user.slice/user-1000.slice and /sys/fs/cgroup/system.slice/x.service: as above
_HYBRID = "/sys/fs/cgroup/unified/"  # where systemd mounts version 2 if it mounts version 1 too: one part more
_NONE_OURS = {errno.ENOENT, errno.ENODEV, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EROFS}  # removed, or never frozen
_STOPPED = "tT"


class FrozenNotes(Protocol):
    """Where mpsd stores what it has frozen: the path of a cgroup with its inode number, a pid with its start time."""

    def frozen(self) -> list[tuple[str, int]]: ...
    def save_frozen(self, name: str, mark: int) -> None: ...
    def forget_frozen(self, name: str) -> None: ...


class LeftFrozen:
    """Guards that what mpsd has frozen is thawed, however late the kernel answers, and also by the next mpsd."""

    def __init__(self, inspector: Inspector, notes: FrozenNotes) -> None:
        self._notes = notes
        self._draining: set[str] = set()  # frozen by a stop that is in progress
        self._frozen = {  # by their paths, each with its inode number
            name: (CgroupDirectory(Path(name), _earlier_share(name), inspector), mark)
            for name, mark in notes.frozen() if name.startswith("/")
        }  # fmt: skip
        self._has_more = Changed()

    def take(self, cgroup: CgroupDirectory, inode: int) -> None:
        """Store a cgroup before it is frozen."""
        name = str(cgroup.path)
        self._notes.save_frozen(name, inode)
        self._draining.add(name)
        self._frozen[name] = cgroup, inode

    def leave(self, cgroup: CgroupDirectory) -> None:
        """Leave the thaw of a cgroup to `run`: it has not been thawed in time."""
        self._draining.discard(str(cgroup.path))
        self._has_more.notify()

    async def thaw(self, cgroup: CgroupDirectory, inode: int) -> bool:
        """Thaw a cgroup, and forget it if that is done: also if it was removed, is another one, or mpsd may not thaw it."""
        name = str(cgroup.path)
        try:
            if await cgroup.thaw(inode) and name not in self._draining:
                log.warning("stop.thawed", what=name, why="it was not thawed in time, or an earlier mpsd was killed")
        except Unreadable:
            return False
        except OSError as exc:
            if exc.errno not in _NONE_OURS:
                return False
        self._draining.discard(name)
        self._frozen.pop(name, None)
        self._notes.forget_frozen(name)
        return True

    async def run(self) -> None:
        """Thaw cgroups that were left, as long as mpsd lives."""
        while True:
            await self.thaw_left()
            if self._frozen.keys() <= self._draining:
                await self._has_more.wait()
            else:
                await trio.sleep(_AGAIN_SECONDS)

    async def thaw_left(self) -> None:
        """Try once to thaw each cgroup that was left."""
        async with trio.open_nursery() as nursery:
            for name, (cgroup, inode) in self._frozen.items():
                if name not in self._draining:
                    nursery.start_soon(self.thaw, cgroup, inode)


class CgroupFreezer:
    """Freezes one cgroup.  Guards that only a cgroup that mpsd froze is thawed."""

    def __init__(self, cgroup: CgroupDirectory, left: LeftFrozen) -> None:
        self._cgroup, self._left = cgroup, left
        self._inode: int | None = None  # if mpsd froze it

    async def freeze(self) -> bool:
        """Freeze the cgroup.

        Returns False, without a change, if mpsd may not freeze it, it is frozen already, or it does not freeze in time.
        """
        why = f"it is not frozen after {_FREEZE_SECONDS:g} s"
        with trio.move_on_after(_FREEZE_SECONDS):
            try:
                found = await self._cgroup.look()
                if found.is_asked:
                    return False
                self._inode = found.inode
                self._left.take(self._cgroup, found.inode)
                await self._cgroup.freeze(found.inode)
                while not (await self._cgroup.look()).is_frozen:  # noqa: ASYNC110  inotify is harder to get right
                    await trio.sleep(_LOOK_SECONDS)
            except (OSError, Unreadable) as exc:
                why = _why(exc)
            else:
                log.info("cgroup.frozen", cgroup=str(self._cgroup.path))
                return True
        log.info("cgroup.not_frozen", cgroup=str(self._cgroup.path), why=why)
        await self.thaw()
        return False

    async def thaw(self) -> bool:
        """Thaw the cgroup if mpsd froze it; return whether that is done.  Else `LeftFrozen` does it when the kernel answers."""
        if self._inode is None:
            return True
        inode, self._inode = self._inode, None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _THAW_SECONDS):
            while not await self._left.thaw(self._cgroup, inode):  # noqa: ASYNC110  the kernel tells nothing
                await trio.sleep(_LOOK_SECONDS)
            return True
        self._left.leave(self._cgroup)
        log.error("cgroup.not_thawed", cgroup=str(self._cgroup.path), why=f"not done within {_THAW_SECONDS:g} s")
        return False

    async def pids(self) -> set[int]:
        """Return the pids of all processes that would be frozen.

        Raises OSError, also for more cgroups or processes than mpsd looks at: their user makes as many as the user likes.
        """
        try:
            return await self._cgroup.processes()
        except Unreadable as exc:
            raise OSError(errno.ETIMEDOUT, str(exc)) from None


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


async def thaw_earlier(notes: FrozenNotes, left: LeftFrozen) -> None:
    """Thaw what an mpsd that was killed has left frozen.  Call it at the start, before anything is frozen.

    It leaves alone a later cgroup of the same path, and a later process with the same pid.
    """
    for name, mark in notes.frozen():
        if not name.startswith("/"):
            try:
                if _continue(ProcessId(int(name), mark)):
                    log.warning("stop.thawed", what=name, why="an earlier mpsd was killed while its clients drained")
            except OSError as exc:
                log.warning("stop.not_thawed", what=name, why=exc.strerror)
            notes.forget_frozen(name)
    await left.thaw_left()
    for name, _ in notes.frozen():
        log.warning("stop.not_thawed", what=name, why="its files cannot be read yet: mpsd tries again every second")


def _earlier_share(name: str) -> int:
    """Return the number against which looks at a cgroup of an earlier mpsd count.

    It is one for all cgroups of a pod, a container or a job, else of a user's slice or a service.  No user can choose the
    number of another's: each start of Python salts the hashes of texts.
    """
    parts, others = parse_path(name), _OTHERS_PARTS + name.startswith(_HYBRID)
    depth = next((part.depth for part in parts if part.kind in _OWNERS and not part.is_chosen_inside), others)
    return _EARLIER_SHARE + hash(tuple(part.name for part in parts if part.depth <= depth)) % _EARLIER_SHARES


def _why(error: OSError | Unreadable) -> str:
    return str(error) if isinstance(error, Unreadable) else os.strerror(error.errno or 0)


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
