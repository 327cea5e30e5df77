"""Accept connections on mpsd.sock, within limits on all of them and on each user's.

connection.py serves each connection.
"""

import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
import trio
from msgspec import Struct

from mpsd.api.audit import Audit
from mpsd.api.authority import Peer, peer_of, unrecognized
from mpsd.api.call import Call, State
from mpsd.api.connection import Connection, Patience, say_goodbye
from mpsd.api.dispatch import dispatch
from mpsd.api.event_bus import EventBus, Subscription
from mpsd.api.fault_reports import Reports
from mpsd.api.ports import Ports
from mpsd.errors import TooMany
from mpsd.fairness.places import OPERATORS_SHARE, Hindrance, Places
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.arrivals import Arrival, hang_up, is_empty, serve_in_turn
from mpsd.host.descriptors import Closings, close_apart
from mpsd.host.peers import Recognition, is_operator, once_known, recognize
from mpsd.host.process_reader import Unanswered
from mpsd.wire.rpc import Request

log = structlog.get_logger()
SOCKET = "mpsd.sock"  # in the pipe directory; mode 0666, since each method has its own privilege
MODE = 0o666
_FIRST_SHARE = 8  # and one in so many for users without a connection: users must not lock each other out
_FEW = 1
# The uid that a connection counts against, and whether as an operator's: root of a container has an operator's uid, and must
# not take an operator's places.
_Share = tuple[int, bool]


class ApiSettings(Struct, frozen=True):
    """The configuration's [api].  A reload may replace it."""

    max_connections: int = 512
    max_per_user: int = 64
    max_queued_events: int = 1024
    hello_seconds: float = 10.0
    idle_seconds: float = 300.0
    send_seconds: float = 30.0
    trusts_containers: bool = False

    @property
    def places(self) -> Places:
        most = self.max_connections
        return Places(most, self.max_per_user, most // OPERATORS_SHARE, most // _FIRST_SHARE, _FEW)


class _NoConnection:
    """The connection of a request that came by another way: no events go there."""

    subscription: Subscription | None = None


class Api:
    """Guards the number of connections: one too many is closed with an error, since a queue would let one user block all."""

    def __init__(
        self,
        services: Ports,
        settings: ApiSettings,
        events: EventBus,
        audit: Audit,
        ranges: UidRanges = NO_RANGES,
        admin_gid: Callable[[], int | None] = lambda: None,
    ) -> None:
        """admin_gid: the group of operators; None while it does not exist or is not known."""
        self.settings = settings
        self._admin_gid = admin_gid
        self._ranges = ranges
        self._services, self._audit = services, audit
        self._open: Counter[_Share] = Counter()
        self._closings = {False: Closings(), True: Closings(most_held=math.inf)}  # of operators: True
        self._turns: dict[_Share, trio.Lock] = {}  # for the shares in _open
        self._looks = trio.Lock()  # the turn of callers that were unread
        self._state = State(
            events,
            Reports(),
            lambda: self.settings.max_queued_events,
            self._open.total,
            lambda: audit.lost,
        )

    @property
    def connections(self) -> int:
        return self._open.total()

    async def ask_as(self, peer: Peer, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a request that came by another way than the socket, as if this peer had made it.  Raises MpsdError."""
        call = Call(self._services, self._state, peer, _NoConnection(), Request(0, method, params))
        return await dispatch(call, self._audit)

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled; connections run in `nursery`.  `listener` is a non-blocking SEQPACKET socket."""

        def begin(arrival: Arrival) -> None:
            has_most = self._own(arrival.credentials.uid) >= self.settings.max_per_user
            if has_most and not self._is_operator(arrival, if_unread=True):  # an operator that is unread waits
                refuse(arrival)  # before anything else is asked about it
                return
            try:
                peer = self._peer(arrival.sock)
                self.begin_with(peer, arrival.sock, nursery, recognize(arrival.sock, peer.process))
            except Unanswered:
                self._wait_for(arrival, nursery)
            except OSError as exc:
                hang_up(arrival.sock)
                _failed(exc)

        def refuse(arrival: Arrival) -> None:
            credentials = arrival.credentials
            refusal = _too_many(credentials.uid, self._own(credentials.uid))
            self._refuse(credentials.uid, credentials.pid, arrival.sock, refusal)

        most = self.settings.max_per_user
        await serve_in_turn(listener, begin, refuse, self._ranges.share_of, self._is_operator, most, _failed)

    def _wait_for(self, arrival: Arrival, nursery: trio.Nursery) -> None:
        """Refuse a peer whose process mpsd cannot read now, or give it a place without an operator's rights.

        Such places count apart: those that root of a container has taken already keep root of the host from none.
        """
        who = arrival.credentials
        share = -1 - self._ranges.share_of(who.uid), False
        if refusal := self._refusal(who.uid, share):
            self._refuse(who.uid, who.pid, arrival.sock, refusal)
            return
        self._enter(share)
        nursery.start_soon(self._begin_once_known, arrival, share, nursery)

    async def _begin_once_known(self, arrival: Arrival, share: _Share, nursery: trio.Nursery) -> None:
        found = None
        try:
            peer = await once_known(partial(self._peer, arrival.sock), self._looks)
            found = peer, recognize(arrival.sock, peer.process)
        except Unanswered as exc:
            who = arrival.credentials
            self._refuse(who.uid, who.pid, arrival.sock, TooMany(f"mpsd cannot tell who asks: {exc.strerror}"))
        except BaseException as exc:
            hang_up(arrival.sock)
            if not isinstance(exc, OSError):
                raise
            _failed(exc)
        finally:
            self._leave(share)
        if found:
            peer, recognition = found
            self.begin_with(peer, arrival.sock, nursery, recognition)

    def _peer(self, sock: socket.socket) -> Peer:
        """Identify the peer.  Raises OSError."""
        return peer_of(sock, self._admin_gid(), trusts_containers=self.settings.trusts_containers)

    def _is_operator(self, arrival: Arrival, *, if_unread: bool = False) -> bool:
        trusts = self.settings.trusts_containers
        return is_operator(arrival.sock, self._admin_gid(), trusts_containers=trusts, if_unread=if_unread)

    def begin_with(
        self, peer: Peer, sock: socket.socket, nursery: trio.Nursery, recognition: Recognition | None = None
    ) -> None:  # fmt: skip
        """Serve or refuse one connection with this peer, who is at the other end of `sock`; close the socket at its end.

        recognition: None if the process is certain.
        """
        if refusal := self._refusal(peer.uid, self._share(peer)):
            self._refuse(peer.uid, peer.pid, sock, refusal)
            return
        settings = self.settings
        patience = Patience(settings.hello_seconds, settings.idle_seconds, settings.send_seconds)
        share = self._share(peer)
        turn = self._enter(share)
        until_certain = unrecognized(peer, trusts_containers=self.settings.trusts_containers)
        recognition = recognition or Recognition(sock, peer.process, is_certain=True)
        parts = (self._services, self._state, self._audit, patience, share[0], self._closings[peer.is_operator], turn)
        nursery.start_soon(self._run, Connection(sock, peer, until_certain, recognition, *parts))

    def _share(self, peer: Peer) -> _Share:
        return self._ranges.share_of(peer.uid), peer.is_operator

    def _own(self, uid: int) -> int:
        """Return how many connections the user has, without those of operators."""
        return self._open[self._ranges.share_of(uid), False]

    def _refusal(self, uid: int, share: _Share) -> TooMany | None:
        total, own = self._open.total(), self._open[share]
        _, is_operator = share
        hindrance = self.settings.places.hindrance(own, total, is_operator)
        if hindrance is Hindrance.OWN:
            return _too_many(uid, own)
        if hindrance is Hindrance.SHARE:
            return TooMany(f"{total} connections are open, {own} of user {uid}; others are kept for users with fewer")
        return TooMany(f"{total} connections are open; more are not allowed") if hindrance else None

    def _refuse(self, uid: int, pid: int, sock: socket.socket, refusal: TooMany) -> None:
        log.warning("api.refused", uid=uid, pid=pid, why=str(refusal))
        say_goodbye(sock, refusal)
        hang_up(sock)

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            try:
                await _close(connection.sock)
            finally:
                self._leave(self._share(connection.peer))

    def _enter(self, share: _Share) -> trio.Lock:
        self._open[share] += 1
        return self._turns.setdefault(share, trio.Lock())

    def _leave(self, share: _Share) -> None:
        self._open[share] -= 1
        if not self._open[share]:
            del self._open[share], self._turns[share]


def _failed(trouble: OSError) -> None:
    log.error("api.accept_failed", why=trouble.strerror)


def _too_many(uid: int, own: int) -> TooMany:
    return TooMany(f"user {uid} has {own} connections; more are not allowed")


async def _close(sock: socket.socket) -> None:
    """Close the socket, and return when it is closed.

    Closing unread descriptors may take long: until then the connection counts against its user.
    """
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RD)
    if is_empty(sock):
        sock.close()
    else:
        await close_apart(sock.close)
