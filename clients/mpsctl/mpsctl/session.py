"""One run of a command: what was asked, where the answer goes, and the connection to mpsd, made when it is needed."""

import argparse
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mpsd_client import Call, Client, Page

from mpsctl.output import Output

T = TypeVar("T")
PROGRAM = "mpsctl"


class NoMpsd(Exception):
    """There is none, or it does not listen to us."""


@dataclass(slots=True)
class Session:
    asked: argparse.Namespace
    out: Output
    connect: Callable[[str | None], Client] = lambda path: Client(path, program=PROGRAM)
    _mpsd: Client | None = field(default=None)

    @property
    def mpsd(self) -> Client:
        """Raises NoMpsd."""
        if self._mpsd is None:
            self._mpsd = self.new_connection()
        return self._mpsd

    def new_connection(self) -> Client:
        """Raises NoMpsd."""
        try:
            return self.connect(getattr(self.asked, "socket", None))
        except TimeoutError as exc:
            raise NoMpsd(str(exc)) from None
        except OSError as exc:
            why = exc.strerror if exc.errno == errno.EPERM else os.strerror(exc.errno or 0)  # EPERM: it says who listens
            raise NoMpsd(f"no mpsd at {exc.filename}: {why}") from None

    def ask(self, call: Call[T]) -> T:
        return self.mpsd.ask(call)

    def all(self, call: Call[Page[T]]) -> list[T]:
        return list(self.mpsd.pages(call))

    def user_name(self, uid: int | None) -> str | None:
        return None if uid is None else self.out.surroundings.user_name(uid)

    def until(self, moment: float | None) -> float | None:
        """Seconds from now."""
        return None if moment is None else max(0.0, moment - self.out.surroundings.now())

    def close(self) -> None:
        """The next question makes another connection."""
        if self._mpsd is not None:
            self._mpsd.close()
            self._mpsd = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
