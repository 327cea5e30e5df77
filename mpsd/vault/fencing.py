"""Track the processes that have an arena open: when each has ended, and none of its work can write any more.

    lives --its pidfd is readable--> ended --neither mpsd nor any earlier mpsd holds its resources--> fenced

The work of a killed process continues for as long as mpsd holds what it needs (docs/ending.md), even after its pidfd is
readable: so the pidfd is not enough.  Prose: docs/vault.md, "Fencing".
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import structlog
import trio
from msgspec import Struct, field

from mpsd.errors import BadRequest, NotAllowed, TooMany
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import processes
from mpsd.host.killed_daemon import wait_closed
from mpsd.host.polling import is_readable
from mpsd.host.process_exit import wait_ended
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.uvm.attachments import Attachments
from mpsd.vault.rules.spec import check_readers

log = structlog.get_logger()
MOST_HOLDERS = 4096  # processes; each needs a descriptor
MOST_OF_USER = 1024  # so that one user cannot keep the others out
_ROOT = 0

Gone = Callable[[ProcessId, float], Awaitable[None]]  # and the seconds from the process's end to this call


class _Wait(Struct, frozen=True, eq=False):
    """A wait for the end of one process."""

    process: ProcessId
    uid: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class ArenaHolders:
    """Guards that each process is waited for once, and that `gone` is called for it only when it is fenced.

    is_awaited: whether mpsd has to release at once what it holds of a dead process.  ranges: of uids that count as one user.
    """

    def __init__(self, holding: Attachments, is_awaited: Callable[[ProcessId], bool], ranges: UidRanges = NO_RANGES) -> None:
        self._share_of = ranges.share_of
        self._holding = holding
        self._is_awaited = is_awaited
        self._waits: dict[ProcessId, _Wait] = {}
        self._own = Counter[int]()  # of these, by the share of their user
        self._ended: set[ProcessId] = set()
        self._hurried: set[ProcessId] = set()  # a request waits for their end
        self._expelled: set[ProcessId] = set()  # fenced before their end
        self._before: list[tuple[int, trio.Event]] = []  # of each earlier mpsd: when the next one began; set: it holds nothing
        self._early: list[_Wait] = []
        self._nursery: trio.Nursery | None = None
        self._gone: Gone | None = None

    @property
    def count(self) -> int:
        return len(self._waits)

    def add(self, process: ProcessId, uid: int | None) -> None:
        """Wait for the process's end.  Raise BadRequest if it has ended, NotAllowed if it was expelled, or TooMany.

        uid: with which it connected; None: that of its program now.
        """
        self._check_not_expelled(process)
        if process in self._ended:  # its end would not be reported again
            raise BadRequest(f"pid {process.pid} has ended")
        if process in self._waits:
            return
        uid = _charged(process, uid)
        self._check_room(uid)
        if not processes.is_alive(process):
            raise BadRequest(f"pid {process.pid} has ended")
        self._begin(_Wait(process, uid))

    def check(self, process: ProcessId) -> None:
        """Check a process that is waited for.  Raise BadRequest if it has ended, NotAllowed if it was expelled."""
        self._check_not_expelled(process)
        if self.has_ended(process) or not processes.is_alive(process):
            raise BadRequest(f"pid {process.pid} has ended")

    def _check_not_expelled(self, process: ProcessId) -> None:
        if process in self._expelled:
            raise NotAllowed(f"pid {process.pid} was fenced, and opens no arena any more: it has to end")

    def _check_room(self, uid: int) -> None:
        """Raise TooMany if one more process of this user would be one too many."""
        if len(self._waits) >= MOST_HOLDERS:
            raise TooMany(f"{MOST_HOLDERS} processes have arenas open, and no more may")
        own = self._own[self._share_of(uid)]
        if kept := hindrance_of_slots(MOST_HOLDERS, own, len(self._waits), uid == _ROOT, "processes with arenas open"):
            raise TooMany(kept)
        if uid != _ROOT and own >= MOST_OF_USER:
            raise TooMany(f"{MOST_OF_USER} processes of user {self._share_of(uid)} have arenas open, and no more may")

    def check_reader(self, arena: Arena, process: ProcessId, uid: int | None) -> None:
        """Check whether the process may be one more reader of the arena, with those of other users.  Raise TooMany."""
        uid = _charged(process, uid)
        share, readers = self._share_of(uid), (self._waits[each] for each in arena.readers if each in self._waits)
        own = sum(self._share_of(each.uid) == share for each in readers)
        check_readers(arena, own, is_preferred=uid in (_ROOT, arena.owner_uid))

    def restore(self, process: ProcessId, uid: int) -> None:
        """Wait for a process of an earlier mpsd, which counted against this user; it may have ended since."""
        if process not in self._waits:
            self._begin(_Wait(process, uid))

    def uid_of(self, process: ProcessId) -> int:
        """Return the uid with which a holder connected.  Raise BadRequest if the process has no arena open."""
        if (wait := self._waits.get(process)) is None:
            raise BadRequest(f"pid {process.pid} has no arena open")
        return wait.uid

    def remove(self, process: ProcessId) -> None:
        """Stop waiting for a process without open arenas."""
        if process in self._ended or process in self._expelled:
            return
        if (wait := self._waits.get(process)) is not None:
            self._forget(wait)
            self._hurried.discard(process)
            wait.scope.cancel()

    def expel(self, process: ProcessId) -> None:
        """Expel a process that was fenced and may still live: it can open no arena, and mpsd waits for its end in any case."""
        if process not in self._waits:
            self._begin(_Wait(process, processes.charged_uid(process.pid) or _ROOT))
        self._expelled.add(process)

    def has_ended(self, process: ProcessId) -> bool:
        """Return whether it has ended and is being fenced."""
        return process in self._ended

    def release(self, process: ProcessId) -> None:
        """Release what mpsd holds of the process, if it has ended."""
        if process in self._ended:
            self._holding.release(process)

    def hurry(self, process: ProcessId) -> None:
        """Release what mpsd holds of the process as soon as it ends: a request waits for its end."""
        if process in self._waits:
            self._hurried.add(process)
        self.release(process)

    async def run(self, before: Mapping[ProcessId, int], gone: Gone) -> None:
        """Run until cancelled.

        before: the earlier mpsds that may not have ended, each with the time, in clock ticks, until which it held clients.
        """
        self._gone = gone
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for daemon, until in before.items():
                is_closed = trio.Event()
                self._before.append((until, is_closed))
                nursery.start_soon(self._see_closed, daemon, is_closed)
            for each in self._early:
                nursery.start_soon(self._wait, each)
            self._early.clear()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _forget(self, wait: _Wait) -> None:
        share = self._share_of(wait.uid)
        del self._waits[wait.process]
        self._own[share] -= 1
        if not self._own[share]:
            del self._own[share]

    def _begin(self, wait: _Wait) -> None:
        self._waits[wait.process] = wait
        self._own[self._share_of(wait.uid)] += 1
        if self._nursery is None:
            self._early.append(wait)
        else:
            self._nursery.start_soon(self._wait, wait)

    async def _wait(self, wait: _Wait) -> None:
        process = wait.process
        try:
            with wait.scope:
                await wait_ended(process)  # for ever: as long as it lives
            if self._waits.get(process) is wait:  # else it has closed its arenas
                self._ended.add(process)
                await self._fence(process)
                self._ended.discard(process)
        finally:
            if self._waits.get(process) is wait:
                self._forget(wait)
                self._hurried.discard(process)
                self._expelled.discard(process)

    async def _see_closed(self, daemon: ProcessId, is_closed: trio.Event) -> None:
        await wait_closed(daemon, self._share_of)  # for ever: until then it may hold what a dead client's work needs
        is_closed.set()

    async def _fence(self, process: ProcessId) -> None:
        began = trio.current_time()
        if process in self._hurried or self._is_awaited(process):
            self._holding.release(process)
        await self._holding.wait_over(process)  # faults.hold_seconds at most
        for until, is_closed in self._before:
            if process.start_time <= until:  # a later one it never held
                await is_closed.wait()  # until the kernel has closed the descriptors of a killed mpsd
        assert self._gone is not None, "set by run()"
        await self._gone(process, trio.current_time() - began)


def _charged(process: ProcessId, uid: int | None) -> int:
    """Return the uid that a process counts against: it may run a program of root's by now, and a user may start one."""
    return uid or processes.charged_uid(process.pid)


def has_ended_wholly(process: ProcessId) -> bool:
    """Return whether the process has ended with all its threads; False if that is not known.

    A thread that waits in the kernel keeps the descriptors of a killed process open.
    """
    try:
        pidfd = processes.open_pidfd(process)
    except OSError:
        return False
    if pidfd is None:
        return True
    try:
        return is_readable(pidfd)
    finally:
        os.close(pidfd)


