"""One conversation on mpsd.sock: hello, then requests, each answered before the next is read, and events in between.

    WAITING FOR HELLO --hello of our version--> TALKING --end, silence, a broken rule--> over

A broken rule ends the conversation: the last words are the response with code PROTOCOL where the request could be read, and
the notification `goodbye` in any case.  Whatever goes wrong in here ends this conversation and nothing else.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
import trio

from mpsd import __version__
from mpsd.api.audit import Audit
from mpsd.api.authority import Peer
from mpsd.api.datagrams import Datagram, parse, receive_now, send, until_gone
from mpsd.api.dispatch import dispatch
from mpsd.api.events import Subscription
from mpsd.api.exchange import Call, State
from mpsd.api.services import Services
from mpsd.api.table import HELLO, METHODS
from mpsd.descriptors import Descriptors
from mpsd.errors import Idle, MpsdError, ProtocolError, Stopping
from mpsd.wire import params
from mpsd.wire.messages import MINOR, MOST_PAGE, VERSION, Hello
from mpsd.wire.rpc import MAX_BYTES, Notification, Request, Response, encode, error_map

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
    _is_answered: bool = False  # the request that is carried out
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
        say_goodbye(self.sock, why)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _converse(self) -> None:
        try:
            is_over = False
            while not is_over:
                datagram = await self._receive()
                try:
                    is_over = not datagram.data
                    if not is_over:
                        await self._answer(parse(datagram), datagram.descriptors)
                finally:
                    await datagram.descriptors.close_strange()
        except (ProtocolError, Idle) as error:
            log.info("api.dropped", **self._who(), why=str(error))
            self.part(error)
        except (OSError, trio.TooSlowError) as exc:
            log.info("api.dropped", **self._who(), why=repr(exc))

    async def _answer(self, request: Request, taken: Descriptors) -> None:
        given, self._is_answered = Descriptors(), False
        carry_out = partial(self._carry_out, request, taken, given)
        try:
            await (self._unless_gone(carry_out) if _may_be_given_up(request) else carry_out())
        except MpsdError as error:
            if not self._is_answered:
                await self._send(encode(Response(request.id, error_map(error), None)))
            if isinstance(error, ProtocolError):
                raise
        finally:
            given.close()
        if self._told is not self.subscription:
            self._told = self.subscription
            self._told_changed.set()

    async def _carry_out(self, request: Request, taken: Descriptors, given: Descriptors) -> None:
        """And answers at once: a standby that waits for this goes on in the same moment."""
        result = self._greet(request, taken) if request.method == HELLO else await self._call(request, taken, given)
        if not self._is_answered:
            await self._send(encode(Response(request.id, None, result)), given)

    def _answer_now(self, request: Request, result: Mapping[str, Any]) -> None:
        """If it can be; else it is answered when its method returns."""
        if self._is_answered or self._sending.locked():
            return
        with suppress(OSError):
            self.sock.send(encode(Response(request.id, None, result)), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            self._is_answered = True

    def _greet(self, request: Request, taken: Descriptors) -> Mapping[str, Any]:
        if taken:
            raise ProtocolError("hello takes no descriptors")
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

    async def _call(self, request: Request, taken: Descriptors, given: Descriptors) -> Mapping[str, Any]:
        if not self._has_greeted:
            raise ProtocolError(f"the first request is hello, and not {request.method[:64]!r}")
        if not self.peer.is_operator:
            async with self.turn:  # taking it waits until all others who can go on have done so once
                pass
        answer = partial(self._answer_now, request)
        return await dispatch(Call(self.services, self.state, self.peer, self, request, taken, given, answer), self.audit)

    async def _unless_gone(self, run: Callable[[], Awaitable[None]]) -> None:
        """Raises BrokenPipeError when the peer hangs up first: nobody waits for it any more."""
        failure: Exception | None = BrokenPipeError("the peer hung up while it waited")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            try:
                await run()
                failure = None
            except (MpsdError, OSError, trio.TooSlowError) as exc:  # raised below: out of a nursery it would come as a group
                failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        await until_gone(self.sock)
        scope.cancel()

    async def _receive(self) -> Datagram:
        """The next datagram.  Raises Idle where none comes in time, ProtocolError for one that is none."""
        seconds = self.patience.idle_seconds if self._has_greeted else self.patience.hello_seconds
        while True:
            with trio.move_on_after(seconds) as waiting:
                await trio.lowlevel.wait_readable(self.sock)
            if waiting.cancelled_caught:
                if self.subscription is not None:
                    continue  # it listens, and need not speak
                raise Idle(f"nothing was said for {seconds:g} s" + ("" if self._has_greeted else ", not even hello"))
            try:
                return receive_now(self.sock)
            except (BlockingIOError, ConnectionResetError):
                continue  # a reset is told once, before what is still queued

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes, given: Descriptors | None = None) -> None:
        """Raises TooSlowError when the peer does not read what it asked for.  The kernel has its own of what is given."""
        with trio.fail_after(self.patience.send_seconds):
            try:
                self._sending.acquire_nowait()  # `async with` would let all others have their turn first
            except trio.WouldBlock:
                await self._sending.acquire()
            try:
                await send(self.sock, data, given.held if given else ())
            finally:
                self._sending.release()

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
            await send(self.sock, data)

    def _who(self) -> Mapping[str, Any]:
        return {"pid": self.peer.pid, "uid": self.peer.uid, "program": self._program}


def say_goodbye(sock: socket.socket, why: MpsdError) -> None:
    """The last words, if the peer can take them now.  Nothing comes after them: a task that was about to send would."""
    with suppress(OSError):  # it is gone, or does not listen
        sock.send(encode(Notification("goodbye", error_map(why))), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _may_be_given_up(request: Request) -> bool:
    method = METHODS.get(request.method)
    return method is not None and method.may_be_given_up and request.params.get("wait_seconds") != 0
