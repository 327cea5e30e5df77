"""Whether low latency is needed: a standby is ready, which takes over as soon as mpsd learns of a fault."""

import trio


class LatencyNeed:
    """The switch for low latency.

    turning: set at the next change; a reader that takes it before it reads is_on misses none.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.turning = trio.Event()

    def turn(self, is_on: bool) -> None:
        """Set the switch; repeating the same value has no effect."""
        if is_on != self.is_on:
            self.is_on = is_on
            self.turning.set()
            self.turning = trio.Event()
