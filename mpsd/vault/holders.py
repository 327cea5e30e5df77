"""The processes that have an arena open: when each is gone, and no work of its can write any more.

    lives --its pidfd is readable--> ended --mpsd holds nothing of it, and nor does an mpsd before--> fenced

A killed process's work goes on for as long as mpsd holds what it needs (docs/ending.md), also where its pidfd is readable: that
is why it is not enough.  Prose: docs/vault.md, "Fencing".
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import trio

from mpsd import processes
from mpsd.errors import BadRequest, NotAllowed, TooMany
from mpsd.model import ProcessId
from mpsd.process_watch import wait_ended

log = structlog.get_logger()
MOST_HOLDERS = 4096  # processes; each needs a descriptor
MOST_OF_USER = 1024  # so that one user cannot keep the others out
_ROOT = 0

Gone = Callable[[ProcessId, float], Awaitable[None]]  # and how long it took from the process's end to here, in seconds


class Holding(Protocol):
    """What mpsd holds of its clients (uvm/attachments.py)."""

    def release(self, process: ProcessId) -> None: ...
    async def wait_over(self, process: ProcessId) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """For the end of one process."""

    process: ProcessId
    uid: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Holders:
    """Guards that each process is waited for once, and that `gone` is told of it only when it is fenced.

    is_awaited: whether what mpsd holds of a dead process is to be let go at once.
    """

    def __init__(self, holding: Holding, is_awaited: Callable[[ProcessId], bool]) -> None:
        self._holding = holding
        self._is_awaited = is_awaited
        self._waits: dict[ProcessId, _Wait] = {}
        self._ended: set[ProcessId] = set()
        self._hurried: set[ProcessId] = set()  # somebody waits for their end
        self._expelled: set[ProcessId] = set()  # fenced before their end
        self._alone = trio.Event()  # no mpsd before this one holds anything any more
        self._early: list[_Wait] = []
        self._nursery: trio.Nursery | None = None
        self._gone: Gone | None = None

    @property
    def count(self) -> int:
        return len(self._waits)

    def add(self, process: ProcessId) -> None:
        """Raises BadRequest for one that has ended, NotAllowed for one that was expelled, TooMany."""
        self._check_not_expelled(process)
        if process in self._ended:  # nobody would be told of its end again
            raise BadRequest(f"pid {process.pid} has ended")
        if process in self._waits:
            return
        uid = self._check_room(process)
        if not processes.is_alive(process):
            raise BadRequest(f"pid {process.pid} has ended")
        self._begin(_Wait(process, uid))

    def check(self, process: ProcessId) -> None:
        """One that is waited for.  Raises BadRequest for one that has ended, NotAllowed for one that was expelled."""
        self._check_not_expelled(process)
        if self.has_ended(process) or not processes.is_alive(process):
            raise BadRequest(f"pid {process.pid} has ended")

    def _check_not_expelled(self, process: ProcessId) -> None:
        if process in self._expelled:
            raise NotAllowed(f"pid {process.pid} was fenced, and opens no arena any more: it has to end")

    def _check_room(self, process: ProcessId) -> int:
        """The user whose it is."""
        uid = _uid(process)
        if len(self._waits) >= MOST_HOLDERS:
            raise TooMany(f"{MOST_HOLDERS} processes have arenas open, and no more may")
        if uid != _ROOT and sum(wait.uid == uid for wait in self._waits.values()) >= MOST_OF_USER:
            raise TooMany(f"{MOST_OF_USER} processes of user {uid} have arenas open, and no more may")
        return uid

    def restore(self, process: ProcessId) -> None:
        """One that an earlier mpsd knew; it may have ended since."""
        if process not in self._waits:
            self._begin(_Wait(process, _uid(process)))

    def remove(self, process: ProcessId) -> None:
        """It has nothing open any more."""
        if process in self._ended or process in self._expelled:
            return
        if (wait := self._waits.pop(process, None)) is not None:
            self._hurried.discard(process)
            wait.scope.cancel()

    def expel(self, process: ProcessId) -> None:
        """It was fenced, and may still live: it opens nothing any more, and is waited for whatever it has open."""
        self.restore(process)
        self._expelled.add(process)

    def has_ended(self, process: ProcessId) -> bool:
        """It is being fenced."""
        return process in self._ended

    def release(self, process: ProcessId) -> None:
        """Where it has ended, nothing of it is held any longer."""
        if process in self._ended:
            self._holding.release(process)

    def hurry(self, process: ProcessId) -> None:
        """Somebody waits for its end: nothing of it is held any longer, from its end on."""
        if process in self._waits:
            self._hurried.add(process)
        self.release(process)

    async def run(self, before: ProcessId | None, gone: Gone) -> None:
        """Until cancelled.  before: the mpsd that held clients before this one did."""
        self._gone = gone
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for each in self._early:
                nursery.start_soon(self._wait, each)
            self._early.clear()
            try:
                await _see_ended(before)
                self._alone.set()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _begin(self, wait: _Wait) -> None:
        self._waits[wait.process] = wait
        if self._nursery is None:
            self._early.append(wait)
        else:
            self._nursery.start_soon(self._wait, wait)

    async def _wait(self, wait: _Wait) -> None:
        process = wait.process
        try:
            with wait.scope:
                await wait_ended(process)  # for ever: as long as it lives
            if self._waits.get(process) is wait:  # else it has nothing open any more
                self._ended.add(process)
                await self._fence(process)
                self._ended.discard(process)
        finally:
            if self._waits.get(process) is wait:
                del self._waits[process]
                self._hurried.discard(process)
                self._expelled.discard(process)

    async def _fence(self, process: ProcessId) -> None:
        began = trio.current_time()
        if process in self._hurried or self._is_awaited(process):
            self._holding.release(process)
        await self._holding.wait_over(process)  # faults.hold_seconds at most
        await self._alone.wait()  # until the kernel has closed what a killed mpsd had open
        assert self._gone is not None, "told by run()"
        await self._gone(process, trio.current_time() - began)


def _uid(process: ProcessId) -> int:
    owner = processes.owner(process.pid)
    return owner[0] if owner else _ROOT


async def _see_ended(before: ProcessId | None) -> None:
    if before is None or before.pid == os.getpid():
        return
    await wait_ended(before)  # for ever: until then it may hold what a dead client runs on
