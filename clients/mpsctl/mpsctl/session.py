"""One run of a command: its arguments, its output, and its connection to mpsd, opened on first use."""

import argparse
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from mpsd_client import Call, Client, Page

from mpsctl.output import Output
from mpsctl.waiting import shown_wait

T = TypeVar("T")
PROGRAM = "mpsctl"


class NoMpsd(Exception):
    """mpsd is not running, or does not accept the connection."""


@dataclass(slots=True)
class Session:
    asked: argparse.Namespace
    out: Output
    connect: Callable[[str | None], Client] = lambda path: Client(path, program=PROGRAM)
    _mpsd: Client | None = field(default=None)

    @property
    def mpsd(self) -> Client:
        """The connection of this run, opened on first use.  Raises NoMpsd."""
        if self._mpsd is None:
            self._mpsd = self.new_connection()
        return self._mpsd

    def new_connection(self) -> Client:
        """Open another connection.  Raises NoMpsd."""
        try:
            return self.connect(getattr(self.asked, "socket", None))
        except TimeoutError as exc:
            raise NoMpsd(str(exc)) from None
        except OSError as exc:
            why = exc.strerror if exc.errno == errno.EPERM else os.strerror(exc.errno or 0)  # EPERM: names the listener
            raise NoMpsd(f"no mpsd at {exc.filename}: {why}") from None

    def needs_one_of(self, *names: str) -> None:
        """End with status 2 if none of these options was given: there is nothing to change."""
        if all(getattr(self.asked, name) is None for name in names):
            self.asked.parser.error(f"nothing to change; give {', '.join(f'--{name}' for name in names)}")

    def ask(self, call: Call[T]) -> T:
        mpsd = self.mpsd
        with shown_wait(call.method, self.out.surroundings.stderr):
            return mpsd.ask(call)

    def all(self, call: Call[Page[T]]) -> list[T]:
        return list(self.mpsd.pages(call))

    def user_name(self, uid: int | None) -> str | None:
        return None if uid is None else self.out.surroundings.user_name(uid)

    def until(self, moment: float | None) -> float | None:
        """Return the seconds from now to the moment, at least 0; None for None."""
        return None if moment is None else max(0.0, moment - self.out.surroundings.now())

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._mpsd is not None:
            self._mpsd.close()
            self._mpsd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
