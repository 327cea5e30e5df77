"""Let clients into a domain: one at a time does its handshake, and only those that may share a window are inside together.

A vendor control daemon serves one connection at a time and waits for its peer without limit: a single silent connection stops
the daemon for all clients (measured, driver 580).  So mpsd lets one client at a time send to it, and takes away those that keep
it waiting (relay/forwarding.py).  limit_guard.py explains windows.

Users take turns, however many connections each has; a user who lately kept a domain waiting comes after the others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from msgspec import Struct, field

from mpsd.fairness.turns import Turns

_MPSD = -1  # no user has this uid


class Entrant(Struct, eq=False):
    """What waits to be let in.  key: only those with equal keys are inside together.

    share: the uid that it counts against.  is_client: it needs the pass.  offences: of one user's, those with fewer go
    first.  is_late: whether its user comes after all others now, which ends soon (relay/offences.py).
    """

    key: object
    share: int = _MPSD
    is_client: bool = False
    offences: int = 0
    is_late: Callable[[], bool] = lambda: False
    may_enter: trio.Event = field(default_factory=trio.Event)


class Pass:
    """The right to send; given back early when the domain makes the client wait, or at the end."""

    def __init__(self, gate: "HandshakeGate | None") -> None:
        self._gate = gate

    def give_back(self) -> None:
        if self._gate is not None:
            self._gate._release()
            self._gate = None


class HandshakeGate:
    """Guards that at most one pass is in use, that all inside have one key, and that only a late user is overtaken.

    The first in the queue lets no other in before it, even if others could enter at once.
    """

    def __init__(self) -> None:
        self.inside = 0
        self.window = 0  # its number; it lasts for as long as anything is inside
        self._key: object = None
        self._is_taken = False
        self._queue: Turns[Entrant] = Turns(lambda entrant: entrant.offences)

    @asynccontextmanager
    async def turn(self, entrant: Entrant) -> AsyncIterator[Pass]:
        await self._enter(entrant)
        right = Pass(self if entrant.is_client else None)
        try:
            yield right
        finally:
            right.give_back()
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
                Pass(self if entrant.is_client else None).give_back()
                self._leave(entrant)
            raise

    def _let_in(self) -> None:
        while (first := self._queue.first(lambda entrant: entrant.is_late())) and self._has_room(first):
            self._queue.remove(first.share, first)
            self._queue.rest(first.share)
            self.window += not self.inside
            self.inside += 1
            self._key = first.key
            self._is_taken |= first.is_client
            first.may_enter.set()

    def _has_room(self, entrant: Entrant) -> bool:
        return not (entrant.is_client and self._is_taken) and (not self.inside or self._key == entrant.key)

    def _leave(self, entrant: Entrant) -> None:
        self.inside -= 1
        self._queue.rest(entrant.share)
        self._let_in()

    def _release(self) -> None:
        self._is_taken = False
        self._let_in()
