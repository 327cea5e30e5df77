"""The line to mpsd, over which the deciding thread asks: it is away, or it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mpsd_client import Call, Client, Disconnected, Page, ProtocolError

from mpsctl.session import NoMpsd, Session

T = TypeVar("T")
_ANSWER_SECONDS = 5.0  # signals wait meanwhile
NO_ANSWER = (NoMpsd, Disconnected, TimeoutError, ProtocolError)


class Away(Exception):
    """There is no mpsd now, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Line:
    """Raises Away, and Refused."""

    session: Session

    def ask(self, call: Call[T]) -> T:
        return self._try(lambda: self.session.ask(call))

    def all(self, call: Call[Page[T]]) -> list[T]:
        return self._try(lambda: self.session.all(call))

    def connect(self) -> Client:
        """Another one, of a thread of its own.  Raises NoMpsd."""
        return self.session.new_connection()

    def _try(self, asked: Callable[[], T]) -> T:
        try:
            try:
                return self._once(asked)
            except Disconnected:  # mpsd ends connections that were silent for long
                self.session.close()
                return self._once(asked)
        except NO_ANSWER as exc:
            self.session.close()
            raise Away(str(exc)) from None

    def _once(self, asked: Callable[[], T]) -> T:
        self.session.mpsd.timeout_seconds = _ANSWER_SECONDS
        return asked()
