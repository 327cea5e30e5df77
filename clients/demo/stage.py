"""The terminal: events line by line, and below them one line for each tenant that is redrawn all the time.

If standard output is not a terminal, the tenants' lines are printed once a second instead, without colours. Does not know
about GPUs.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence

_REDRAW_SECONDS = 0.1
_PIPED_SECONDS = 1.0
_COLOURS = {"good": "32", "bad": "31;1", "wait": "33", "dim": "2", "bold": "1"}


class Stage:
    """Guards that the live lines stay the last ones on the screen."""

    def __init__(self, is_fast: bool) -> None:
        self._is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._has_colours = self._is_live and not os.environ.get("NO_COLOR")
        self._is_fast = is_fast
        self._cast: Sequence[Callable[[bool], str]] = ()  # draws a live line; True: as one line of text, without a strip
        self._drawn = 0
        self._next_draw = 0.0
        self._started = time.monotonic()

    def paint(self, colour: str, text: str) -> str:
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._has_colours else text

    def open(self, cast: Sequence[Callable[[bool], str]]) -> None:
        """The clock of the act begins; `cast` draws the live lines."""
        self._cast, self._started, self._next_draw = cast, time.monotonic(), 0.0

    def close(self) -> None:
        """Leave the live lines on the screen."""
        self._erase()
        self.say(*[draw(False) for draw in self._cast], "")
        self._cast = ()

    def say(self, *lines: str) -> None:
        self._erase()
        print(*lines, sep="\n", flush=True)
        if self._is_live:
            self._next_draw = 0.0

    def tell(self, text: str, colour: str = "") -> None:
        """Something that happened, with the time since the act began."""
        stamp = self.paint("dim", f"{time.monotonic() - self._started:6.1f} s ")
        self.say(f"{stamp} {self.paint(colour, text) if colour else text}")

    def draw(self) -> None:
        """Draw the live lines if they are due."""
        now = time.monotonic()
        if not self._cast or now < self._next_draw:
            return
        if self._is_live:
            self._next_draw = now + _REDRAW_SECONDS
            lines = [draw(False) for draw in self._cast]
            self._erase()
            sys.stdout.write("\n".join(lines) + "\n")
            self._drawn = len(lines)
        else:
            self._next_draw = now + _PIPED_SECONDS
            sys.stdout.write(f"{now - self._started:6.1f} s    " + " | ".join(draw(True) for draw in self._cast) + "\n")
        sys.stdout.flush()

    def pause(self, seconds: float) -> None:
        """Time to read."""
        if not self._is_fast:
            time.sleep(seconds)

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\033[{self._drawn}A\033[J")
            self._drawn = 0
