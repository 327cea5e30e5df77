"""Let clients into a domain: one at a time does its handshake, and only those that may share a window are inside together.

A vendor control daemon serves one connection at a time and waits for its peer without limit: a single silent connection stops
the daemon for all clients (measured, driver 580).  So mpsd lets one client at a time send to it, and takes away those that keep
it waiting (relay/forwarding.py).  limit_guard.py explains windows.

Users take turns, however many connections each has; a user who lately kept a domain waiting comes after the others.
"""

import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import trio
from msgspec import Struct, field

from mpsd.fairness.turns import Turns

MPSD = -1  # no user has this uid
_OWN_USER_SECONDS = 30.0  # so long a client may keep out others of its user


class Entrant(Struct, eq=False):
    """What waits to be let in.  key: only those with equal keys are inside together.

    share: the uid that it counts against.  is_client: it needs the pass.  offences: of one user's, those with fewer go
    first.  is_late: whether its user comes after all others now, which ends soon (relay/offences.py).
    """

    key: object
    share: int = MPSD
    is_client: bool = False
    offences: int = 0
    is_late: Callable[[], bool] = lambda: False
    may_enter: trio.Event = field(default_factory=trio.Event)
    may_be_in_the_way: trio.Event = field(default_factory=trio.Event)  # set while it is inside: look again
    kept_out_seconds: float = 0.0  # so long it was in the way of another user, until `keeps_out_since`
    keeps_out_since: float = math.inf  # trio time; infinite while it is in the way of none

    def keep_out(self, keeps_out: bool) -> None:
        """Measure the time in which it is in the way of another user."""
        now = trio.current_time()
        self.kept_out_seconds += max(now - self.keeps_out_since, 0.0)
        self.keeps_out_since = now if keeps_out else math.inf


class Pass:
    """The right to be inside; and that of a client to send, given back early when the domain makes the client wait."""

    def __init__(self, gate: "HandshakeGate", entrant: Entrant) -> None:
        self._gate = gate
        self._entrant = entrant

    def give_back(self) -> None:
        """Let another client send."""
        self._gate._release(self._entrant)

    def kept_out_seconds(self) -> float:
        """Return how long it has been in the way of another user."""
        self._entrant.keep_out(self._entrant.keeps_out_since < math.inf)
        return self._entrant.kept_out_seconds

    async def until_overdue(self, since: float, seconds: float) -> None:
        """Return when it is in the way of another user, after so many seconds; or of its own user, after _OWN_USER_SECONDS."""
        await trio.sleep_until(since + seconds)
        with trio.move_on_at(since + _OWN_USER_SECONDS):
            await self.until_in_the_way(of_others=True)
            return
        await self.until_in_the_way(of_others=False)

    async def until_in_the_way(self, *, of_others: bool) -> None:
        """Wait until the first in the queue waits for this one to leave.  of_others: and another user is in the queue."""
        while not self._gate._is_in_the_way(self._entrant, of_others):
            self._entrant.may_be_in_the_way = trio.Event()
            await self._entrant.may_be_in_the_way.wait()


class HandshakeGate:
    """Guards that at most one client may send, that all inside have one key, and that only a late user is overtaken.

    The first in the queue lets no other in before it, even if others could enter at once.
    """

    def __init__(self) -> None:
        self.window = 0  # its number; it lasts for as long as anything is inside
        self._inside: set[Entrant] = set()
        self._key: object = None
        self._sender: Entrant | None = None
        self._queue: Turns[Entrant] = Turns(lambda entrant: entrant.offences)

    @property
    def inside(self) -> int:
        return len(self._inside)

    @asynccontextmanager
    async def turn(self, entrant: Entrant) -> AsyncIterator[Pass]:
        await self._enter(entrant)
        try:
            yield Pass(self, entrant)
        finally:
            self._leave(entrant)

    async def _enter(self, entrant: Entrant) -> None:
        self._queue.put(entrant.share, entrant)
        self._let_in()
        try:
            await entrant.may_enter.wait()  # for ever: what is inside leaves within its patience
        except trio.Cancelled:
            if not entrant.may_enter.is_set():
                self._queue.remove(entrant.share, entrant)
                self._let_in()
            else:  # it was let in at the same moment
                self._leave(entrant)
            raise

    def _let_in(self) -> None:
        while (first := self._first()) and not self._in_the_way_of(first):
            self._queue.remove(first.share, first)
            self._queue.rest(first.share)
            self.window += not self._inside
            self._inside.add(first)
            self._key = first.key
            if first.is_client:
                self._sender = first
            first.may_enter.set()
        in_the_way = self._in_the_way_of(first) if first else ()
        for each in self._inside:
            each.keep_out(each in in_the_way and self._queue.has_others_than(each.share))
        for each in in_the_way:
            each.may_be_in_the_way.set()

    def _first(self) -> Entrant | None:
        return self._queue.first(lambda entrant: entrant.is_late())

    def _in_the_way_of(self, entrant: Entrant) -> Collection[Entrant]:
        """Return those inside that have to leave, or to let another client send, before it can enter."""
        if self._inside and entrant.key != self._key:
            return self._inside
        return (self._sender,) if self._sender and entrant.is_client else ()

    def _is_in_the_way(self, entrant: Entrant, of_others: bool) -> bool:
        first = self._first()
        is_kept_out = first is not None and entrant in self._in_the_way_of(first)
        return is_kept_out and (not of_others or self._queue.has_others_than(entrant.share))

    def _leave(self, entrant: Entrant) -> None:
        self._inside.remove(entrant)
        self._end_turn(entrant)

    def _release(self, entrant: Entrant) -> None:
        if self._sender is entrant:
            self._end_turn(entrant)

    def _end_turn(self, entrant: Entrant) -> None:
        if self._sender is entrant:
            self._sender = None
        self._queue.rest(entrant.share)
        self._let_in()
