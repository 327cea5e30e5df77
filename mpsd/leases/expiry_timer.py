"""Sleep until the next entry is due: a sleep that ends earlier if something is due earlier."""

import math
from collections.abc import Callable

import trio

from mpsd.notify import Changed

_LONGEST_SECONDS = 60.0  # if the clock is set, an entry may be due before the sleep ends
_SHORTEST_SECONDS = 0.02


class ExpiryTimer:
    """Guards that the sleeping task does not sleep past the next due time.  clock: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = -math.inf  # when the sleep ends; -inf: no task sleeps
        self._earlier = Changed()

    def expect(self, *times: float | None) -> None:
        """Announce due times; None is never."""
        if any(at is not None and at < self._until for at in times):
            self._earlier.notify()

    async def sleep_until(self, *times: float | None) -> None:
        """Sleep until the first of these times, or an earlier one that is announced in the meantime."""
        now = self._clock()
        first = min((at for at in times if at is not None), default=math.inf)
        seconds = min(max(first - now, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        self._until = now + seconds
        with trio.move_on_after(seconds):
            await self._earlier.wait()
        self._until = -math.inf
