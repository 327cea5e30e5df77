"""The main thread's connection to mpsd: it renews the connection, and reports an unreachable mpsd as Away."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mpsd_client import Call, Client, Disconnected, Page, ProtocolError, Refused, calls

from mpsctl.session import NoMpsd, Session

T = TypeVar("T")
_ANSWER_SECONDS = 5.0  # short, because signals wait for the answer
_HANDOVER_SECONDS = 60.0
NO_ANSWER = (NoMpsd, Disconnected, ProtocolError, OSError)  # OSError: TimeoutError, and a lack of memory or descriptors


class Away(Exception):
    """mpsd is not running or does not answer."""


@dataclass(frozen=True, slots=True)
class MpsdConnection:
    """A connection to mpsd.  `ask` and `all` raise Away and Refused."""

    session: Session

    def ask(self, call: Call[T]) -> T:
        return self._try(lambda: self.session.ask(call))

    def all(self, call: Call[Page[T]]) -> list[T]:
        return self._try(lambda: self.session.all(call))

    def connect(self) -> Client:
        """Return a new connection, for use by another thread.  Raises NoMpsd."""
        return self.session.new_connection()

    def hand_over(self, service: str, *, to_pid: int | None = None, from_pid: int | None = None) -> str:
        """Ask for a handover to a member, or from the active, which has to leave then; on a new connection.  Wait until it is
        over.  Return why there was none; empty if there was."""
        try:
            with self.connect() as mpsd:
                mpsd.timeout_seconds = 2 * _HANDOVER_SECONDS
                mpsd.ask(calls.service_handover(service, to_pid, wait_seconds=_HANDOVER_SECONDS, from_pid=from_pid))
        except (*NO_ANSWER, Refused) as exc:
            return str(exc)
        return ""

    def _try(self, asked: Callable[[], T]) -> T:
        try:
            try:
                return self._once(asked)
            except Disconnected:  # mpsd closes connections that were idle for long
                self.session.close()
                return self._once(asked)
        except NO_ANSWER as exc:
            self.session.close()
            raise Away(str(exc)) from None

    def _once(self, asked: Callable[[], T]) -> T:
        self.session.mpsd.timeout_seconds = _ANSWER_SECONDS
        return asked()
