"""The processes that a stop means: one process, or the clients in a cgroup or container; and those it must not touch.

Prose: docs/ending.md, "client.stop".
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.domains.listed import listed_process
from mpsd.domains.pool import Pool
from mpsd.errors import BadRequest, NoSuchClient, TooMany
from mpsd.host import cgroups, processes
from mpsd.host.cgroup_directory import CgroupDirectory
from mpsd.host.inspector import Inspector
from mpsd.host.ownership import USER_UNREAD, has_uid_of, is_ones_own, may_end
from mpsd.model import stop
from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING
from mpsd.model.stop import Asker, Target, TargetKind
from mpsd.stop import rules
from mpsd.stop.freezer import CgroupFreezer, LeftFrozen

_AT_ONCE = 16  # processes that all callers together look at in one turn of the event loop: 3 ms
_READ_SECONDS = 5.0  # for the cgroups of all clients, before Linux 6.8: there one user can delay each read by half a second
_MOST_READ = 64  # texts of one caller that mpsd has at a time: users choose their lengths
_OWN_UNREAD = f"the cgroups of pid {{}}, the caller, were not read in {_READ_SECONDS:.0f} s"
_TURN_SECONDS = 0.003  # fewer if the kernel takes 20 ms for a status, as with 65,536 groups
T = TypeVar("T")
R = TypeVar("R")


class _Place(Enum):
    """Where a process belongs in `Found`."""

    MINE = auto()
    OTHERS = auto()
    UNREAD = auto()


class Found(Struct):
    """The processes of a target that the caller may end, and how many of its clients belong to others.

    unread: processes that may be the caller's and in the target: their user or their cgroups could not be read.
    """

    mine: list[ProcessId]
    others: int = 0
    unread: list[ProcessId] = field(default_factory=list)


class Targets:
    """Guards that a caller finds only processes it may end, and never mpsd, a vendor daemon or a server.

    admitted: clients that admission knows, including those that wait.  needed: pids of mpsd's other processes that clients
    depend on (keepers, the refuser); the domains' own are known here.  left: thaws
    what was frozen; None: freeze no cgroup.
    """

    def __init__(
        self,
        pool: Pool,
        inspector: Inspector,
        admitted: Callable[[], Iterable[ProcessId]],
        needed: Callable[[], Iterable[int]] = tuple,
        left: LeftFrozen | None = None,
    ) -> None:
        self._pool = pool
        self._inspector = inspector
        self._admitted = admitted
        self._needed = needed
        self._left = left
        self._turn = trio.Lock()

    async def resolve(self, target: Target, asker: Asker) -> Target:
        """Return the target with the caller's own cgroup or container for SELF.  Raises BadRequest."""
        if target.value != stop.SELF or target.kind is TargetKind.PID:
            return target
        text = await self._text_of(asker)
        paths = cgroups.parsed(text)
        if target.kind is TargetKind.CONTAINER:
            own = rules.container_of(paths)
        else:
            own = cgroups.unified_path(text) or next(iter(paths), None)
        if own is None:
            raise BadRequest(f"mpsd sees you as pid {asker.pid}, in no {target.kind.value} that it could name")
        return replace(target, value=own)

    async def find(self, target: Target, asker: Asker) -> Found:
        """Return the processes that the target means.  Raises NoSuchClient, BadRequest."""
        if target.kind is TargetKind.PID:
            return Found([await self._find_process(int(target.value), target.start_time, asker)])
        own = rules.territory(cgroups.parsed(await self._text_of(asker)))
        texts: dict[int, str] = {}

        def place_of(process: ProcessId) -> _Place | None:
            """Return None for a process that is not in the target, or cannot be if it is the caller's."""
            text = texts.get(process.pid)
            if text is not None:
                top = rules.branch(cgroups.parsed(text), target, asker)
                if top is None or not asker.may_name(top, own):
                    return None
            if not processes.is_alive(process):
                return None
            is_own = is_ones_own(asker, process.pid)
            if text is None:  # containers share uids: a process is the caller's only if that is known
                may_be_own = is_own or (is_own is None and asker.bound is EVERYTHING)
                return _Place.UNREAD if may_be_own else None
            return {True: _Place.MINE, False: _Place.OTHERS, None: _Place.UNREAD}[is_own]

        found, clients = Found([]), sorted(await self._clients())
        until = trio.current_time() + _READ_SECONDS
        for at in range(0, len(clients), _MOST_READ):
            some = clients[at : at + _MOST_READ]
            texts = await self._texts([each.pid for each in some], asker, until - trio.current_time())
            for process, place in zip(some, await self._in_turns(some, place_of), strict=True):
                if place is _Place.OTHERS:
                    found.others += 1
                elif place is not None:
                    (found.mine if place is _Place.MINE else found.unread).append(process)
        return found

    async def freezer(self, target: Target, asker: Asker, members: Sequence[ProcessId]) -> CgroupFreezer | None:
        """Return a freezer for the whole target, if it is a cgroup of version 2 and all its processes are the caller's.

        None: freeze the processes one by one.
        """
        if self._left is None or (unified := self._pool.program.unified) is None:
            return None
        if target.kind is TargetKind.PID or not members:
            return None
        texts = await self._texts([asker.pid, *(each.pid for each in members)], asker, _READ_SECONDS)
        own = rules.territory(cgroups.parsed(texts.get(asker.pid, "")))
        paths = [path for each in members if (path := cgroups.unified_path(texts.get(each.pid, "")))]
        top = rules.branch(paths, target, asker)
        if top is None or ".." in top.split("/"):  # a cgroup outside mpsd's own cgroup namespace
            return None
        if not asker.may_freeze(top, own):
            return None
        uid = asker.uid if asker.uid is not None else processes.charged_uid(members[0].pid)
        directory = unified.joinpath(*Path(top).parts[1:])
        cgroup = CgroupDirectory(directory, self._pool.ranges.share_of(uid), self._pool.program.inspector)
        found = CgroupFreezer(cgroup, self._left)
        try:
            pids = await found.pids()
        except OSError:
            return None
        needed = self._all_needed()
        if not pids or 0 in pids or pids & needed:
            return None
        return found if all(await self._in_turns(list(pids), lambda pid: may_end(asker, pid))) else None

    async def may_still_end(self, process: ProcessId, asker: Asker) -> bool | None:
        """Return whether the caller may still end the process; None if that is not known.

        Check it before each signal: the process may run another user's program by now (setuid).
        """
        [is_theirs] = await self._in_turns([process.pid], partial(is_ones_own, asker))
        return is_theirs

    def check_not_needed(self, found: Iterable[ProcessId]) -> None:
        """Raise BadRequest if one of the processes is mpsd's own, or one that clients depend on."""
        needed = self._all_needed()
        for process in found:
            if process.pid in needed:
                raise BadRequest(f"pid {process.pid} is mpsd's own or one that clients need; `quit` ends those")

    async def _find_process(self, pid: int, start_time: int, asker: Asker) -> ProcessId:
        """Return the process.  Raises NoSuchClient, BadRequest; TooMany if it may be the caller's, and cannot be read now."""
        process, why = None, ""
        try:
            process = processes.process_id(pid) if has_uid_of(asker, pid) else None
        except OSError as exc:
            why = exc.strerror or str(exc)
        [is_own] = await self._in_turns([pid], partial(is_ones_own, asker))
        if is_own is None or (is_own and why):
            raise TooMany(f"pid {pid} cannot be stopped now: {why or USER_UNREAD}")
        if not is_own or process is None or start_time not in (0, process.start_time):
            raise NoSuchClient(f"no client has pid {pid}")
        self.check_not_needed([process])
        return process

    def _all_needed(self) -> set[int]:
        """Return the pids not to be stopped, from mpsd's own records, since any program can take any name."""
        daemons = {control.process.pid for domain in self._pool.domains.values() if (control := domain.control).process}
        servers = {pid for domain in self._pool.domains.values() for pid in domain.servers}
        return {1, os.getpid()} | daemons | servers | set(self._needed())

    async def _text_of(self, asker: Asker) -> str:
        """Return the caller's cgroups.  Raises BadRequest if it cannot be read."""
        texts = await self._texts([asker.pid], asker, _READ_SECONDS)
        if asker.pid not in texts:
            raise BadRequest(_OWN_UNREAD.format(asker.pid))
        return texts[asker.pid]

    async def _texts(self, pids: Sequence[int], asker: Asker, seconds: float) -> dict[int, str]:
        """Return what the processes show of their cgroups, as far as that is read in this time."""
        return await self._inspector.cgroups(pids, asker.uid, seconds) if seconds > 0 else {}

    async def _clients(self) -> set[ProcessId]:
        """Return the clients; some may have ended."""
        pids = [(domain.admitted, pid) for domain in self._pool.domains.values() for pid in domain.client_pids]
        listed = set(filter(None, await self._in_turns(pids, lambda each: listed_process(*each))))
        placed = {process for domain in self._pool.domains.values() for process in domain.members}
        return listed | placed | set(self._admitted())

    async def _in_turns(self, things: Sequence[T], look: Callable[[T], R]) -> list[R]:
        """Look at some of them in each turn of the event loop: one user can have thousands of processes, and ask often."""
        found: list[R] = []
        while len(found) < len(things):
            async with self._turn:
                until = time.monotonic() + _TURN_SECONDS
                for each in things[len(found) : len(found) + _AT_ONCE]:
                    found.append(look(each))
                    if time.monotonic() >= until:
                        break
        return found
