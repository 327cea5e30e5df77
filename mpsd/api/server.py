"""The door of mpsd.sock: accepting connections and keeping them within bounds, of all and of each user.

What happens on one is in connection.py.
"""

import socket
from collections import Counter
from dataclasses import dataclass

import structlog
import trio

from mpsd.api.audit import Audit
from mpsd.api.authority import Peer, peer_of
from mpsd.api.connection import Connection, Patience
from mpsd.api.events import EventBus
from mpsd.api.exchange import State
from mpsd.api.faults import FaultLog, Reports
from mpsd.api.services import Services
from mpsd.descriptors import close_apart
from mpsd.errors import TooMany

log = structlog.get_logger()
SOCKET = "mpsd.sock"  # in the pipe directory; mode 0666, since who may do what is decided for each method
MODE = 0o666
OPERATORS_SHARE = 8  # one place in so many is kept for operators: users must not lock them out
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The configuration's [api], and [ui].admin_group.  A reload may put another in its place."""

    max_connections: int = 512
    max_per_user: int = 64
    max_queued_events: int = 1024
    hello_seconds: float = 10.0
    idle_seconds: float = 300.0
    send_seconds: float = 30.0
    admin_group: str = ""


class Api:
    """Guards the number of connections: one too many is told so and closed, since a queue would let one user block all."""

    def __init__(self, services: Services, settings: ApiSettings, events: EventBus, audit: Audit) -> None:
        self.settings = settings
        self.faults = FaultLog()
        events.listeners.append(self.faults.take)
        self._services, self._audit = services, audit
        self._open: Counter[int] = Counter()  # by uid
        self._turns: dict[int, trio.Lock] = {}  # by uid, of those in _open
        self._state = State(
            events,
            self.faults,
            Reports(),
            lambda: self.settings.max_queued_events,
            self._open.total,
            lambda: audit.lost,
        )

    @property
    def connections(self) -> int:
        return self._open.total()

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled; conversations run in `nursery`.  `listener` is a non-blocking SEQPACKET socket."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                connection, _ = listener.accept()
                self.begin(connection, nursery)
            except BlockingIOError:
                continue
            except OSError as exc:
                log.error("api.accept_failed", why=exc.strerror)
                await trio.sleep(_PAUSE_SECONDS)

    def begin(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        """One conversation with whoever is at the other end; closes `sock` at its end.  Raises OSError."""
        sock.setblocking(False)
        try:
            peer = peer_of(sock, self.settings.admin_group)
        except OSError:
            sock.close()
            raise
        self.begin_with(peer, sock, nursery)

    def begin_with(self, peer: Peer, sock: socket.socket, nursery: trio.Nursery) -> None:
        settings = self.settings
        patience = Patience(settings.hello_seconds, settings.idle_seconds, settings.send_seconds)
        turn = self._turns.get(peer.uid) or trio.Lock()
        connection = Connection(sock, peer, self._services, self._state, self._audit, patience, turn)
        if refusal := self._refusal(peer):
            log.warning("api.refused", uid=peer.uid, pid=peer.pid, why=str(refusal))
            connection.part(refusal)
            nursery.start_soon(close_apart, sock.close)
            return
        self._open[peer.uid] += 1
        self._turns[peer.uid] = turn
        nursery.start_soon(self._run, connection)

    def _refusal(self, peer: Peer) -> TooMany | None:
        settings, total, own = self.settings, self._open.total(), self._open[peer.uid]
        if own >= settings.max_per_user:
            return TooMany(f"user {peer.uid} has {own} connections; more are not allowed")
        most = settings.max_connections - (0 if peer.is_operator else settings.max_connections // OPERATORS_SHARE)
        return TooMany(f"there are {total} connections; more are not allowed") if total >= most else None

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            try:
                await close_apart(connection.sock.close)  # with it goes what it has not read, and descriptors in that
            finally:
                self._leave(connection.peer.uid)

    def _leave(self, uid: int) -> None:
        self._open[uid] -= 1
        if not self._open[uid]:
            del self._open[uid], self._turns[uid]
