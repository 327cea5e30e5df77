"""Watch one client from its first connection until after its end: attach, shield, listen, hold, release.

    the client                              mpsd
    connects                                looks for its descriptors; again soon until it finds some
    makes a context (connects again)        tries the shield every 5 ms until it holds
    closes them, starts another program     releases them, looks for others
    exits                                   releases everything at once
    is killed                               holds its VA space until its work can be over; not if no other client is there
    makes a fatal fault                     reports it at once; holds nothing afterwards, since nothing can be saved

Prose: docs/uvm.md.
"""

import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
import trio
from msgspec import Struct, field

from mpsd.errors import TooMany
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.polling import until_ended, until_perhaps_readable
from mpsd.host.process_exit import ProcessExit, how_ended, how_it_is_ending
from mpsd.host.rules.descriptor_budget import MOST_SPACES
from mpsd.model.client import ShieldState, WatchStatus
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.notify import Changed
from mpsd.uvm.abi import UvmEvent
from mpsd.uvm.client_descriptors import ProcessEnded
from mpsd.uvm.fault_digest import digest, digest_guarded, doubted, guarded
from mpsd.uvm.holding import HeldSpace, OpenSpaces, attach_all, close_all, look, why_no_proof
from mpsd.uvm.space import Queue, Space, Unavailable
from mpsd.uvm.status import UvmSettings

log = structlog.get_logger()
InThread = Callable[..., Awaitable[Any]]

_EAGER_SECONDS = 0.005  # a context exists some 20 ms after its VA space, and the first kernel may come at once
_EAGER_FOR_SECONDS = 2.0
_OVERDUE_SECONDS = 0.05  # if it tries still later, the context of a short job may have come and gone
_LATE_SECONDS = 0.1
_LATE_FOR_SECONDS = 10.0
_UNREAD_SECONDS = 0.5  # after a read that took too long, as on a busy machine; twice as long after each further one
_MOST_UNREAD = 6  # a client may make all of mpsd's reads wait
_OFTEN_SECONDS = 0.25
_SELDOM_SECONDS = 10.0
_FLOOD_SECONDS = 0.1  # between two observations of one client; its queue fills in that time
_BREATH_SECONDS = 0.001
_VERDICT_SECONDS = 0.05  # a fatal fault begins like one in a guard, and is reported as fatal at once after that
_ATTACH_SECONDS = 2.0
_KNOWN_SECONDS = 0.5  # a fault soon after the context waits so long for the look that makes it proof
_MOST_GUARDS = 64
_PAUSE_TIMES = 10  # as long as the taking of served faults takes is the pause after it
_COMPANY_SECONDS = 0.05
_LEAVE_SECONDS = 10.0


class WatchParts(Struct, frozen=True):
    """What all watches share."""

    open_spaces: OpenSpaces
    count: Callable[[ProcessId, int], None]  # takes how many more descriptors mpsd holds of the client
    may_take: Callable[[ProcessId], bool]  # whether its user's clients may take another of mpsd's descriptors
    inspector: Inspector
    publish: Callable[[Observation], None]
    in_thread: InThread  # the kernel may delay the caller
    close: InThread  # in separate threads: a thousand clients that died must not keep the next one without a shield
    tell_absent: Callable[[str], None]
    tell_end: Callable[[ProcessId, str, bool], None]  # of a client that asked for a context: its domain, whether it had one
    served: trio.Lock = field(default_factory=trio.Lock)  # of the user: who takes served faults, which come without end


class Watch(Struct, eq=False):
    """Guards that what was taken of one client is released once, after no process can need it."""

    process: ProcessId
    domain: str
    gpus: tuple[str, ...]
    has_company: Callable[[], bool]
    is_roomy: bool  # its memory limit leaves room for a context
    settings: UvmSettings
    around: WatchParts
    holdings: list[HeldSpace] = field(default_factory=list)
    connections: int = 1  # a process makes one, and one more for each context
    has_asked: bool = True  # for a context: then it has opened its own VA space
    _is_complete: bool = False  # mpsd has taken all its descriptors since
    _is_new: bool = False  # it may have executed another program, which has made no connection yet
    _known_connections: int = 1  # at the last look
    _looked: Changed = field(default_factory=Changed)
    _leaving: list[HeldSpace] = field(default_factory=list)  # are being closed; the client's end may cancel that
    _listeners: dict[HeldSpace, trio.CancelScope] = field(default_factory=dict)
    _woken: trio.Event = field(default_factory=trio.Event)
    _released: trio.Event = field(default_factory=trio.Event)
    _has_faulted: bool = False
    _seen_ending: ProcessExit | None = None
    _is_refused: bool = False  # another look is useless before something wakes the watch
    _unread: int = 0  # looks in a row in which the client could not be read in time
    _why: str = "its descriptors were not found yet"
    _lost: int = 0
    _due_at: float = math.inf  # when it tries the shield again (trio time)
    _is_full: bool = False  # the last look could take no further descriptors
    _counted: int = 0  # descriptors that are counted for its user
    _was_late: bool = False  # it tried later than that, and may have missed a context
    _guards: list[range] = field(default_factory=list)
    _in_guards: list[UvmEvent] = field(default_factory=list)  # seen, and not known yet whether they are fatal

    # -- for other modules -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look again after an event of the client, and often for a while."""
        self._woken.set()

    def connect(self, domain: str, gpus: tuple[str, ...], has_company: Callable[[], bool], is_again: bool = False) -> None:
        """Record one more connection of the client, for a context, or that mpsd has linked one again.

        It may be in another domain, if the one before fell ill or was another user's.
        """
        self.domain, self.gpus, self.has_company = domain, gpus, has_company
        if not is_again:
            self.connections += 1
            self.has_asked, self._is_complete, self._is_new = not self._is_new, False, False
            self._due_at, self._was_late = trio.current_time() + _EAGER_SECONDS, False  # before that it had no context to miss
        self.wake()

    def note_leaving(self) -> None:
        """Record how the client is ending, if it is, after the end of a connection: later this may not be visible."""
        self._seen_ending = how_it_is_ending(self.process) or self._seen_ending

    def release(self) -> None:
        """Hold nothing for it once it has ended."""
        self._released.set()

    async def guard(self, base: int, length: int) -> bool:
        """Report GPU faults in this range, where the client has guards; return False if no queue listens.  Raise TooMany."""
        new = range(base, base + length)
        if new not in self._guards and len(self._guards) >= _MOST_GUARDS:
            raise TooMany(f"{_MOST_GUARDS} ranges with guards of pid {self.process.pid} are known")
        with trio.move_on_after(_ATTACH_SECONDS):
            while not self._listeners and self.settings.events and not self._is_refused:  # noqa: ASYNC110 as _attend does
                await trio.sleep(_EAGER_SECONDS)
        try:
            for holding in self.holdings:
                if holding.queue is not None:
                    await self.around.in_thread(holding.queue.hear_served)
        except Unavailable as exc:
            self.around.tell_absent(str(exc))
            return False
        if new not in self._guards:
            self._guards.append(new)
        return bool(self._listeners)

    @property
    def standing(self) -> WatchStatus:
        layings = [holding.laying for holding in self.holdings if holding.laying is not None]
        states = {laying.state for laying in layings} or {ShieldState.OFF}
        whys = dict.fromkeys([self._why] + [each.why for each in self.holdings] + [each.why for each in layings])
        return WatchStatus(
            watched=any(holding.queue is not None for holding in self.holdings),
            shield=states.pop() if len(states) == 1 else ShieldState.PARTLY,
            held=self.settings.hold and bool(self.holdings),
            why="; ".join(why for why in whys if why),
        )

    # -- lifetime --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the client has ended and mpsd holds none of its descriptors."""
        try:
            pidfd = processes.open_pidfd(self.process)
        except OSError as exc:
            self.around.tell_absent(f"mpsd cannot watch a client: {exc.strerror}")
            return
        if pidfd is None:
            return
        try:
            async with trio.open_nursery() as life:
                life.start_soon(self._attend, pidfd, life)
                await until_ended(pidfd)  # for ever: as long as the client lives
                life.cancel_scope.cancel()
            if self.connections > 1 and self.is_roomy and (had_context := self._had_context) is not None:
                self.around.tell_end(self.process, self.domain, had_context)
            await self._see_off(pidfd)
        finally:
            os.close(pidfd)
            await self._let_go([*self.holdings, *self._leaving])
            self.holdings = []
            self._count()

    async def _attend(self, pidfd: int, life: trio.Nursery) -> None:
        since, must_look = trio.current_time(), True
        while True:
            if must_look:
                await self._look(pidfd, life)
            for holding in list(self.holdings):
                if holding.laying is not None and not holding.laying.is_done:
                    await self.around.in_thread(holding.laying.attempt)
            self._was_late |= self._is_overdue
            patience = self._patience(trio.current_time() - since)
            self._due_at = trio.current_time() + patience
            with trio.move_on_after(patience):
                await self._woken.wait()
            must_look = self._woken.is_set() or self._unread > 0 or not self._is_attached
            if self._woken.is_set():
                since, self._woken = trio.current_time(), trio.Event()

    @property
    def _had_context(self) -> bool | None:
        """Whether the shield could be mapped, as it can from the first context on; None: it was not tried, or not in time."""
        states = [holding.laying.state for holding in self.holdings if holding.laying is not None]
        tried = [state for state in states if state is not ShieldState.OFF]
        if any(state is not ShieldState.WAITING for state in tried):
            return True
        return None if not tried or self._was_late or self._is_overdue else False

    @property
    def _is_overdue(self) -> bool:
        return trio.current_time() > self._due_at + _OVERDUE_SECONDS

    @property
    def _is_attached(self) -> bool:
        """Whether nothing that was asked for needs another descriptor."""
        needs_space = self.settings.events or self.settings.shield != "off"
        return any(holding.is_space or not needs_space for holding in self.holdings)

    def _patience(self, age_seconds: float) -> float:
        """Return the seconds until the next attempt, if no event comes before; the age is since the last event."""
        if self._unread:
            return _UNREAD_SECONDS * 2 ** (self._unread - 1) if self._unread <= _MOST_UNREAD else math.inf
        layings = [holding.laying for holding in self.holdings if holding.laying is not None]
        if self._is_refused or (self._is_attached and all(laying.is_done for laying in layings)):
            return math.inf
        if age_seconds < _EAGER_FOR_SECONDS:
            return _EAGER_SECONDS
        if self._is_attached:
            is_begun = any(laying.laid_bytes for laying in layings)
            return _SELDOM_SECONDS if is_begun else _OFTEN_SECONDS  # a context may come without a connection through mpsd
        return _LATE_SECONDS if age_seconds < _LATE_FOR_SECONDS else math.inf

    async def _look(self, pidfd: int, life: trio.Nursery) -> None:
        try:
            have, around, connections = list(self.holdings), self.around, self.connections
            found = await around.in_thread(look, self.process, pidfd, have, self._open_spaces, around.inspector)
        except ProcessEnded:
            return  # its pidfd shows that
        taken = found.found[: MOST_SPACES - len(have)]
        self.holdings = [holding for holding in (*self.holdings, *taken) if holding not in found.lost]
        self._leaving = [*found.lost, *found.found[len(taken) :]]
        await self._let_go(self._leaving)
        self._leaving = []
        await around.in_thread(attach_all, self.holdings, self.process, self.gpus, self.settings, around.inspector)
        self._count()
        if found.lost and self.connections == connections:  # it may have executed another program
            self.has_asked, self._is_new = False, connections == self._known_connections
        self._known_connections = connections
        self._is_complete = self.has_asked and self.connections == connections and not (found.why or self._is_full)
        self._looked.notify()
        for holding in self.holdings:
            if holding.queue is not None and holding not in self._listeners:
                self._listeners[holding] = trio.CancelScope()
                life.start_soon(self._listen, holding.queue, self._listeners[holding])
        is_unread = found.is_unread or any(holding.no_plan for holding in self.holdings)
        self._unread = self._unread + 1 if is_unread else 0
        self._is_refused = bool(found.why) and not self.holdings and not is_unread
        if self._is_full and not self._is_attached:
            self._why = "its user's clients have as many of mpsd's descriptors as they may (docs/operating.md, Open files)"
            self.around.tell_absent(self._why)
            return
        self._why = found.why or ("" if self._is_attached else "its descriptors were not found yet")
        for why in dict.fromkeys([found.why, *(holding.why for holding in self.holdings)]):
            if why:
                self.around.tell_absent(why)

    def _open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        """Take further descriptors, unless the user has its share.  Asked in the thread: many looks may wait for one."""
        self._is_full = len(have) >= MOST_SPACES or not self.around.may_take(process)
        return [] if self._is_full else self.around.open_spaces(process, pidfd, have)

    def _count(self) -> None:
        held = sum(holding.descriptors for holding in self.holdings)
        self.around.count(self.process, held - self._counted)
        self._counted = held

    # -- faults ----------------------------------------------------------------------------------------------------------

    async def _listen(self, queue: Queue, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await until_perhaps_readable(queue)  # for ever: most clients never fault
                with trio.move_on_after(_KNOWN_SECONDS):
                    while self.has_asked and not self._is_complete:
                        await self._looked.wait()
                await trio.sleep(await self._take_in_turn(queue))
                if self._in_guards:
                    await trio.sleep(_VERDICT_SECONDS)
                    await self._take_in_turn(queue, is_verdict=True)

    async def _take_in_turn(self, queue: Queue, *, is_verdict: bool = False) -> float:
        """Take the queue's records; those of a client with guards with pauses, so that its user's take little of the loop."""
        if not (self._guards or self._in_guards):
            return self._take(queue)
        async with self.around.served:
            began = trio.current_time()
            patience = self._take(queue)
            if is_verdict:
                self._tell_guarded()
            await trio.sleep(_PAUSE_TIMES * (trio.current_time() - began))
        return patience

    def _take(self, queue: Queue) -> float:
        """Take the queue's records and report them; return for how long to leave the queue alone."""
        taken = queue.take()
        if taken.lost:
            self._tell_lost(taken.lost)
        observation = digest(taken.events, taken.lost, self.process, self.domain, self.gpus, time.monotonic_ns())
        self._in_guards += guarded(taken.events, self._guards) if self._guards else ()
        if observation is not None:
            self._in_guards.clear()
        if observation is None:
            return _BREATH_SECONDS if taken.events else _FLOOD_SECONDS
        # Else its own work may go on, and harm others when it is killed.
        self._has_faulted |= not why_no_proof(self.holdings, is_complete=self._is_complete)
        self._publish(observation)
        return _FLOOD_SECONDS

    def _publish(self, seen: Observation) -> None:
        """Publish a fault; without proof where it may not be the client's."""
        if doubt := why_no_proof(self.holdings, is_complete=self._is_complete):
            seen = doubted(seen, doubt)
        self.around.publish(seen)

    def _tell_guarded(self) -> None:
        """Report the faults in guards that no fatal fault followed."""
        if self._in_guards:
            seen_ns = time.monotonic_ns()
            self._publish(digest_guarded(self._in_guards, self.process, self.domain, self.gpus, seen_ns))
            self._in_guards.clear()

    def _tell_lost(self, lost: int) -> None:
        if not self._lost:
            log.warning("uvm.events_lost", pid=self.process.pid, domain=self.domain, count=lost)
        self._lost += lost

    # -- end of the client -----------------------------------------------------------------------------------------------

    async def _see_off(self, pidfd: int) -> None:
        """Return when its work can no longer hurt another client."""
        for holding in self.holdings:
            if holding.queue is not None:
                self._take(holding.queue)  # its last records
        self._tell_guarded()
        ending = how_ended(pidfd, self.process) or self._seen_ending
        if not self.holdings or not self.settings.hold or (ending is not None and not ending.signal):
            return
        began = trio.current_time()
        if self._is_worth_holding:
            log.info("uvm.held", pid=self.process.pid, domain=self.domain, ended=str(ending or "unknown"))
            with trio.move_on_after(self.settings.hold_seconds):
                while self._is_worth_holding:
                    with trio.move_on_after(_COMPANY_SECONDS):  # the clients in its domain are polled
                        await self._released.wait()
            seconds = round(trio.current_time() - began, 3)
            log.info("uvm.released", pid=self.process.pid, seconds=seconds)
            if self._is_worth_holding:  # what still runs is about to end its co-runners
                self._tell_unheld(seconds)

    def _tell_unheld(self, seconds: float) -> None:
        """Report that a fault in the domain from now on may come of this client's end, which was `seconds` ago."""
        text = f"pid {self.process.pid} was killed; mpsd held its GPU work for {seconds} s, and stops"
        host, now_ns = FaultClass.HOST, time.monotonic_ns()
        self.around.publish(Observation(Source.PROCESS, now_ns, host, domain=self.domain, process=self.process, text=text))

    @property
    def _is_worth_holding(self) -> bool:
        return not self._released.is_set() and not self._has_faulted and self.has_company()

    async def _let_go(self, holdings: Sequence[HeldSpace]) -> None:
        """Close these in a thread, once one is free.

        Closing the last descriptor of a dead client takes its work off the GPU, which can take a while.  What is still open
        when mpsd ends, the kernel closes a moment later.
        """
        for holding in holdings:
            if (scope := self._listeners.pop(holding, None)) is not None:
                scope.cancel()
        if not holdings:
            return
        try:
            await trio.lowlevel.checkpoint()  # until the listeners have ended
            await self.around.close(close_all, holdings)
        except trio.Cancelled:
            with trio.move_on_after(_LEAVE_SECONDS, shield=True):
                await trio.lowlevel.checkpoint()
                await self.around.close(close_all, holdings)
            raise
