"""Let one client at a time do its handshake in each domain.

A vendor control daemon serves one connection at a time and waits for its peer without limit: a single silent connection stops
the daemon for all clients (measured, driver 580).  So mpsd lets one client at a time send to it, those with fewer offences
first, and takes away those that keep it waiting (relay/forwarding.py).
"""

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import trio


class Pass:
    """The right to send; given back early when the domain makes the client wait, or at the end."""

    def __init__(self, gate: "HandshakeGate") -> None:
        self._gate: HandshakeGate | None = gate

    def give_back(self) -> None:
        if self._gate is not None:
            self._gate._release()
            self._gate = None


class HandshakeGate:
    """Guards that at most one pass is in use.  Clients with fewer offences go first, then in order of arrival."""

    def __init__(self) -> None:
        self._is_taken = False
        self._queue: list[tuple[int, int, trio.Event]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def turn(self, offences: int) -> AsyncIterator[Pass]:
        await self._acquire(offences)
        right = Pass(self)
        try:
            yield right
        finally:
            right.give_back()

    async def _acquire(self, offences: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        entry = (offences, next(self._arrivals), trio.Event())
        heapq.heappush(self._queue, entry)
        try:
            await entry[2].wait()  # for ever: every pass comes back within its holder's patience
        except trio.Cancelled:
            if entry[2].is_set():
                self._release()  # it got the pass at the same moment
            else:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
            raise

    def _release(self) -> None:
        if self._queue:
            heapq.heappop(self._queue)[2].set()
        else:
            self._is_taken = False
