"""The program's view of its process and machine: streams, environment, clock, user names; tests replace it."""

import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

WIDE = 4000  # columns without a terminal, so that nothing is cut for a program that reads the output


@dataclass(frozen=True, slots=True)
class Surroundings:
    """user_name: returns the name of a uid, or its digits if it has no name."""

    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    now: Callable[[], float]
    user_name: Callable[[int], str]

    @property
    def is_terminal(self) -> bool:
        return self.stdout.isatty()

    @property
    def has_screen(self) -> bool:
        """Whether the output is a terminal that can redraw lines."""
        return self.is_terminal and self.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")

    @property
    def has_colours(self) -> bool:
        """Whether to use colours: on a screen, unless NO_COLOR is set (no-color.org)."""
        return self.has_screen and not self.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        columns = self.environ.get("COLUMNS", "")
        if columns.isdecimal() and 20 <= int(columns) <= WIDE:
            return int(columns)
        return shutil.get_terminal_size((80, 24)).columns if self.is_terminal else WIDE

    @property
    def height(self) -> int:
        return shutil.get_terminal_size((80, 24)).lines if self.is_terminal else WIDE


def of_process() -> Surroundings:
    return Surroundings(sys.stdout, sys.stderr, os.environ, time.time, user_name)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
