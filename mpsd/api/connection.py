"""One connection on mpsd.sock: hello, then requests, each answered before the next is read, and events in between.

    WAITING FOR HELLO --hello of our version--> TALKING --end, silence, a broken rule--> over

A broken rule ends the connection: mpsd sends the response with code PROTOCOL if it could read the request, and the
notification `goodbye` in any case.  An error in here ends this connection and nothing else.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
import trio
from msgspec import Struct, field

from mpsd import __version__
from mpsd.api.audit import Audit
from mpsd.api.authority import Peer
from mpsd.api.call import Call, State
from mpsd.api.datagrams import parse
from mpsd.api.dispatch import dispatch
from mpsd.api.event_bus import Subscription
from mpsd.api.method_table import HELLO, METHODS
from mpsd.api.ports import Ports
from mpsd.errors import Idle, MpsdError, ProtocolError, Stopping, TooMany
from mpsd.host.datagrams import Datagram, receive_now, send, until_gone
from mpsd.host.descriptors import Closings, Descriptors, close_soon
from mpsd.host.peers import Recognition
from mpsd.host.polling import has_room
from mpsd.host.process_reader import Unanswered
from mpsd.notify import Changed
from mpsd.wire import params
from mpsd.wire.messages import MINOR, MOST_PAGE, VERSION, Hello
from mpsd.wire.rpc import MAX_BYTES, Notification, Request, Response, encode, error_map

log = structlog.get_logger()
_BATCH = 64  # events sent to one subscriber before the other tasks have their turn


class Patience(Struct, frozen=True):
    """How long a peer may take: to send hello, to send a request (unless it waits for events), to read an answer."""

    hello_seconds: float
    idle_seconds: float
    send_seconds: float


class Connection(Struct, eq=False):
    """Guards that only hello is answered before hello, and that one request runs at a time.

    until_certain: stands for the peer in calls, until its process is recognized.
    """

    sock: socket.socket
    peer: Peer
    until_certain: Peer
    recognition: Recognition
    services: Ports
    state: State
    audit: Audit
    patience: Patience
    share: int  # the uid that the peer's counts as
    closings: Closings  # of all users' descriptors
    turn: trio.Lock  # of this user; a user's requests begin one after the other, so that opening many connections gains nothing
    subscription: Subscription | None = None
    _told: Subscription | None = None  # whose events are sent: its response has been sent
    _told_changed: Changed = field(default_factory=Changed)
    _has_greeted: bool = False
    _program: str = ""
    _is_answered: bool = False  # whether the request that runs now has been answered
    _sending: trio.Lock = field(default_factory=trio.Lock)  # events and answers: only one of them waits for room

    async def run(self) -> None:
        """Serve the connection until the peer closes it, breaks a rule or is silent too long; never raise the peer's errors."""
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
                with self.closings.holding(self.share, len(datagram.descriptors)):
                    files_closed = self._begin_closing(datagram.descriptors.take_files())
                    try:
                        is_over = not datagram.data
                        if not is_over:
                            self._recognize(datagram.sender_pid)
                            await self._answer(parse(datagram), datagram.descriptors)
                    finally:
                        await self.closings.close(self.share, datagram.descriptors.take())
                        await files_closed.wait()  # as long as the user likes
        except (ProtocolError, Idle, TooMany) as error:
            log.info("api.dropped", **self._who(), why=str(error))
            self.part(error)
        except (OSError, trio.TooSlowError) as exc:
            log.info("api.dropped", **self._who(), why=repr(exc))

    def _recognize(self, sender_pid: int) -> None:
        """Raises TooMany if mpsd cannot read the process."""
        try:
            self.recognition.note(sender_pid)
        except Unanswered as exc:
            raise TooMany(f"mpsd cannot tell who asks: {exc.strerror}") from None

    def _begin_closing(self, files: list[int]) -> trio.Event:
        """Close the files that came with a request before it is answered, for which the peer can let mpsd wait.

        A file that is open as mpsd is killed keeps its process, if the file's server is silent: only the name of a thread that
        closes it lets the next mpsd end that (host/file_servers.py).  Return what is set once they are closed.
        """
        closed = trio.Event()
        if files:
            self.closings.begin(self.share, files, closed.set)
        else:
            closed.set()
        return closed

    async def _take_turn(self) -> None:
        """Wait until no earlier request has to begin: first one of the user, then one of each other user.

        Decoding counts too: 64 KiB take up to 16 ms (measured), and root of a container can have the connections of hundreds of
        users.  So one request begins while all other tasks that can run, also those of operators, run once.
        """
        if not self.peer.is_operator:
            async with self.turn, self.state.turn:  # acquiring one waits until these tasks have run
                pass

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
            close_soon(given.take())  # after the arena's end these close GPU memory
        if self._told is not self.subscription:
            self._told = self.subscription
            self._told_changed.notify()

    async def _carry_out(self, request: Request, taken: Descriptors, given: Descriptors) -> None:
        """Run the request and answer at once: a standby that waits for the answer continues without delay."""
        result = self._greet(request, taken) if request.method == HELLO else await self._call(request, taken, given)
        if not self._is_answered:
            await self._send(encode(Response(request.id, None, result)), given)

    def _answer_now(self, request: Request, result: Mapping[str, Any]) -> None:
        """Send the answer now if the socket has room and is free; otherwise it is sent when the method returns."""
        if self._is_answered or self._sending.locked():
            return
        with suppress(OSError):
            self.sock.send(encode(Response(request.id, None, result)), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            self._is_answered = True

    def _greet(self, request: Request, taken: Descriptors) -> Mapping[str, Any]:
        if taken:
            raise ProtocolError("hello takes no descriptors")
        if self._has_greeted:
            raise ProtocolError("hello may be sent only once")
        version = request.params.get("version")
        if type(version) is int and version != VERSION:  # first: other fields of another version may mean something else
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
        await self._until_room()
        answer = partial(self._answer_now, request)
        peer = self.peer if self.recognition.is_certain else self.until_certain
        return await dispatch(Call(self.services, self.state, peer, self, request, taken, given, answer), self.audit)

    async def _unless_gone(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run the request.  Raises BrokenPipeError when the peer hangs up first: then the answer has no reader."""
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
        """Return the next datagram.  Raises Idle if none comes in time, ProtocolError for one that is malformed."""
        seconds = self.patience.idle_seconds if self._has_greeted else self.patience.hello_seconds
        while True:
            with trio.move_on_after(seconds) as waiting:
                await trio.lowlevel.wait_readable(self.sock)
            if waiting.cancelled_caught:
                if self.subscription is not None:
                    continue  # a subscriber need not send anything
                raise Idle(f"no request came for {seconds:g} s" + ("" if self._has_greeted else ", not even hello"))
            await self._take_turn()  # before the descriptors come: others of this user would wait with theirs
            while not self.closings.has_room(self.share):
                await self.closings.room(self.share)
                await self._take_turn()  # all of a user's connections may get room in one moment
            try:
                datagram = receive_now(self.sock, MAX_BYTES)
            except (BlockingIOError, ConnectionResetError):
                continue  # a reset is reported once, before the queued data
            return datagram

    async def _until_room(self) -> None:
        """Wait until an answer can be sent: one that waits for room itself holds up to 128 of mpsd's descriptors meanwhile.

        Raises TooSlowError when the peer does not read what it asked for.
        """
        if has_room(self.sock):
            return
        with trio.fail_after(self.patience.send_seconds):
            while not has_room(self.sock):
                async with self._sending:
                    await trio.lowlevel.wait_writable(self.sock)
        await self._take_turn()  # as in the loop of requests: all of a user's connections may get room in one moment

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes, given: Descriptors | None = None) -> None:
        """Send, with descriptors.  The kernel keeps its own copies of `given`.

        Raises TooSlowError when the peer does not read what it asked for.
        """
        with trio.fail_after(self.patience.send_seconds):
            try:
                self._sending.acquire_nowait()  # `async with` would let all other tasks run first
            except trio.WouldBlock:
                await self._sending.acquire()
            try:
                await send(self.sock, data, given.held if given else ())
            finally:
                self._sending.release()

    async def _tell_events(self) -> None:
        """Send the events that the peer subscribed to, in order.

        A subscriber may be slow for ever: its queue is bounded, and the connection counts against its user.
        """
        while True:
            while (subscription := self._told) is None or subscription.is_over:
                await self._told_changed.wait()  # for ever: not every client subscribes
            await subscription.changed()
            async with self._sending:
                try:
                    await self._tell_some(subscription)
                except OSError:
                    return  # the task that reads the socket sees the end

    async def _tell_some(self, subscription: Subscription) -> None:
        for _ in range(_BATCH):
            if (data := subscription.take_now()) is None:
                return
            await send(self.sock, data)

    def _who(self) -> Mapping[str, Any]:
        return {"pid": self.peer.pid, "uid": self.peer.uid, "program": self._program}


def say_goodbye(sock: socket.socket, why: MpsdError) -> None:
    """Send the last datagram, if the peer can take it now, and shut down sending, so that no other task sends after it."""
    with suppress(OSError):  # it has closed, or does not read
        sock.send(encode(Notification("goodbye", error_map(why))), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _may_be_given_up(request: Request) -> bool:
    method = METHODS.get(request.method)
    return method is not None and method.may_be_given_up and request.params.get("wait_seconds") != 0
