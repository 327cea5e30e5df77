"""One conversation on mpsd.sock: hello, then requests, each answered before the next is read, and events in between.

    WAITING FOR HELLO --hello of our version--> TALKING --end, silence, a broken rule--> over

A broken rule ends the conversation: the last words are the response with code PROTOCOL where the request could be read, and
the notification `goodbye` in any case.  Whatever goes wrong in here ends this conversation and nothing else.
"""

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from mpsd import __version__
from mpsd.api.audit import Audit
from mpsd.api.authority import Peer
from mpsd.api.dispatch import dispatch
from mpsd.api.events import Subscription
from mpsd.api.exchange import Call, State
from mpsd.api.services import Services
from mpsd.api.table import HELLO, METHODS
from mpsd.errors import MpsdError, ProtocolError, Stopping
from mpsd.wire import params
from mpsd.wire.messages import MINOR, MOST_PAGE, VERSION, Hello
from mpsd.wire.rpc import MAX_BYTES, Notification, Request, Response, decode, encode, error_map

log = structlog.get_logger()
_BATCH = 64  # events sent to one reader before others have their turn


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer may take: to say hello, to say anything (not while it waits for events), to read an answer."""

    hello_seconds: float
    idle_seconds: float
    send_seconds: float


@dataclass(slots=True, eq=False)
class Connection:
    """Guards that nothing but hello is answered before hello, and one request at a time."""

    sock: socket.socket
    peer: Peer
    services: Services
    state: State
    audit: Audit
    patience: Patience
    turn: trio.Lock  # of this user: requests of one user are begun one after the other, so that many connections do not help
    subscription: Subscription | None = None
    _told: Subscription | None = None  # the one whose events are sent: its response has been
    _told_changed: trio.Event = field(default_factory=trio.Event)
    _has_greeted: bool = False
    _program: str = ""
    _sending: trio.Lock = field(default_factory=trio.Lock)  # events and answers: one of them waits for room at a time

    async def run(self) -> None:
        """Until the peer hangs up, breaks a rule or is silent for too long; raises no error of the conversation."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_events)
                await self._converse()
                nursery.cancel_scope.cancel()
        except* Exception:
            log.exception("api.bug", **self._who())
        finally:
            if trio.current_effective_deadline() == -math.inf:
                self.part(Stopping("mpsd ends, or makes way for another mpsd"))
            if self.subscription is not None:
                self.state.events.unsubscribe(self.subscription)

    def part(self, why: MpsdError) -> None:
        """The last words, if the peer can take them now."""
        try:
            self.sock.send(encode(Notification("goodbye", error_map(why))), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is gone, or does not listen

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _converse(self) -> None:
        try:
            while (data := await self._receive()) is not None:
                await self._answer(data)
        except ProtocolError as error:
            log.info("api.dropped", **self._who(), why=str(error))
            self.part(error)
        except (OSError, trio.TooSlowError) as exc:
            log.info("api.dropped", **self._who(), why=repr(exc))

    async def _answer(self, data: bytes) -> None:
        request = decode(data)
        if not isinstance(request, Request):
            raise ProtocolError("only requests come from clients")
        try:
            result = self._greet(request) if request.method == HELLO else await self._call(request)
        except MpsdError as error:
            await self._send(encode(Response(request.id, error_map(error), None)))
            if isinstance(error, ProtocolError):
                raise
        else:
            await self._send(encode(Response(request.id, None, result)))
        if self._told is not self.subscription:
            self._told = self.subscription
            self._told_changed.set()

    def _greet(self, request: Request) -> Mapping[str, Any]:
        if self._has_greeted:
            raise ProtocolError("hello is said once")
        version = request.params.get("version")
        if type(version) is int and version != VERSION:  # first: what else another version says is not ours to judge
            raise ProtocolError(f"you speak version {version} of the protocol, this mpsd speaks version {VERSION}")
        self._program = params.parse(Hello, request.params).program
        self._has_greeted = True
        return {
            "version": VERSION,
            "minor": MINOR,
            "program": f"mpsd {__version__}",
            "uid": self.peer.uid,
            "pid": self.peer.pid,
            "is_operator": self.peer.is_operator,
            "idle_seconds": self.patience.idle_seconds,
            "datagram_bytes": MAX_BYTES,
            "page": MOST_PAGE,
            "methods": [HELLO, *METHODS],
        }

    async def _call(self, request: Request) -> Mapping[str, Any]:
        if not self._has_greeted:
            raise ProtocolError(f"the first request is hello, and not {request.method[:64]!r}")
        if not self.peer.is_operator:
            async with self.turn:  # taking it waits until all others who can go on have done so once
                pass
        return await dispatch(Call(self.services, self.state, self.peer, self, request), self.audit)

    async def _receive(self) -> bytes | None:
        """The next datagram; None at the end.  Raises ProtocolError for one that is too large, carries descriptors, or does
        not come in time."""
        seconds = self.patience.idle_seconds if self._has_greeted else self.patience.hello_seconds
        while True:
            with trio.move_on_after(seconds) as waiting:
                await trio.lowlevel.wait_readable(self.sock)
            if waiting.cancelled_caught:
                if self.subscription is not None:
                    continue  # it listens, and need not speak
                raise ProtocolError(f"nothing was said for {seconds:g} s" + ("" if self._has_greeted else ", not even hello"))
            try:
                return self._receive_now()
            except (BlockingIOError, ConnectionResetError):
                continue  # a reset is told once, before what is still queued

    def _receive_now(self) -> bytes | None:
        """Descriptors are not even taken: without room for them the kernel drops its own copies, and says that there were some.
        No method wants one."""
        data, _, flags, _ = self.sock.recvmsg(MAX_BYTES)
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"a datagram has more than {MAX_BYTES} bytes")
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("a request carries descriptors, and no method wants one")
        return data or None

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        """Raises TooSlowError when the peer does not read what it asked for."""
        with trio.fail_after(self.patience.send_seconds):
            async with self._sending:
                await self._send_when_possible(data)

    async def _send_when_possible(self, data: bytes) -> None:
        while True:
            try:
                self.sock.send(data, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)

    async def _tell_events(self) -> None:
        """What was subscribed to, in the order in which it happened.  A reader may be slow for ever: what waits for it is
        bounded, and the connection counts against its user."""
        while True:
            while (subscription := self._told) is None or subscription.is_over:
                self._told_changed = trio.Event()
                await self._told_changed.wait()  # for ever: not everybody subscribes
            await subscription.changed()
            async with self._sending:
                try:
                    await self._tell_some(subscription)
                except OSError:
                    return  # whoever reads sees the end

    async def _tell_some(self, subscription: Subscription) -> None:
        for _ in range(_BATCH):
            if (data := subscription.take_now()) is None:
                return
            await self._send_when_possible(data)

    def _who(self) -> Mapping[str, Any]:
        return {"pid": self.peer.pid, "uid": self.peer.uid, "program": self._program}
