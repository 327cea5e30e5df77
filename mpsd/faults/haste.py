"""Whether somebody waits for the next fault: the standby of a service, which takes over as soon as mpsd has heard of it."""

import trio


class Haste:
    """turning: set at the next change; taken before is_on is read, it misses none."""

    def __init__(self) -> None:
        self.is_on = False
        self.turning = trio.Event()

    def turn(self, is_on: bool) -> None:
        """May be said again."""
        if is_on != self.is_on:
            self.is_on = is_on
            self.turning.set()
            self.turning = trio.Event()
