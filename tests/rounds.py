"""Counts the turns of the event loop, for tests of what is done in one of them."""

import trio


class Rounds(trio.abc.Instrument):
    """number: the turns since it was added."""

    def __init__(self) -> None:
        self.number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1
