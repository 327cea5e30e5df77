"""When the book has to look at what is over: a sleep that ends earlier if something is due earlier."""

import math
from collections.abc import Callable

import trio

_LONGEST_SECONDS = 60.0  # somebody may set the clock, and then what is due by it comes earlier than the sleep ends
_SHORTEST_SECONDS = 0.02


class Schedule:
    """Guards that nobody sleeps past what is due.  clock: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = -math.inf  # when the sleep ends; nobody sleeps: there is nobody to wake
        self._earlier = trio.Event()

    def expect(self, *times: float | None) -> None:
        """Something is due then; None is never."""
        if any(at is not None and at < self._until for at in times):
            self._earlier.set()

    async def sleep_until(self, *times: float | None) -> None:
        """The first of these, or what is expected meanwhile."""
        now = self._clock()
        first = min((at for at in times if at is not None), default=math.inf)
        seconds = min(max(first - now, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        self._until, self._earlier = now + seconds, trio.Event()
        with trio.move_on_after(seconds):
            await self._earlier.wait()
        self._until = -math.inf
