"""The server's side of the socket tests: an Api over fakes, and callers of any user at real SEQPACKET sockets."""

import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from mpsd.api.audit import Audit, Trail
from mpsd.api.audit import open_audit as open_audit_files
from mpsd.api.authority import Peer
from mpsd.api.event_bus import EventBus
from mpsd.api.server import MODE, SOCKET, Api, ApiSettings
from mpsd.config.log_options import LogOptions
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.descriptors import KERNELS_MOST, close_all, rights
from mpsd.host.listeners import listen
from mpsd.wire.messages import VERSION
from mpsd.wire.rpc import Frame, Notification, Request, Response, decode, encode
from tests.unit.api.fake_services import NOW, Fakes, furnished

OPERATOR = Peer(10, 0, True)
OWNER = Peer(586, 1000, False)
STRANGER = Peer(999, 3000, False)
PATIENCE_SECONDS = 20.0


@dataclass
class Caller:
    """The client end of one connection."""

    sock: socket.socket
    events: list[Notification] = field(default_factory=list)  # those that came before an answer
    fds: list[int] = field(default_factory=list)  # that came with frames
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        while True:
            try:
                self.sock.sendmsg([data], rights(fds), socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)

    async def receive(self) -> Frame | None:
        """Return the next frame, or None at the end."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                await trio.lowlevel.wait_readable(self.sock)
                try:
                    data, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, KERNELS_MOST, socket.MSG_CMSG_CLOEXEC)
                except (BlockingIOError, ConnectionResetError):
                    continue
                self.fds += fds
                return decode(data) if data else None

    def take_fds(self) -> list[int]:
        """Return the descriptors received since the last call; the caller closes them."""
        taken, self.fds = self.fds, []
        return taken

    def close(self) -> None:
        self.sock.close()
        close_all(self.take_fds())

    async def call(self, method: str, fds: Sequence[int] = (), **params: Any) -> Response:
        number = next(self._ids)
        await self.send(encode(Request(number, method, params)), fds)
        while True:
            frame = await self.receive()
            if isinstance(frame, Notification) and frame.method != "goodbye":
                self.events.append(frame)
                continue
            assert isinstance(frame, Response), f"{method}: {frame}"
            assert frame.id == number
            return frame

    async def ask(self, method: str, **params: Any) -> Any:
        """Return the result of a call that must succeed."""
        response = await self.call(method, **params)
        assert response.error is None, f"{method}: {response.error}"
        return response.result

    async def refusal(self, method: str, **params: Any) -> str:
        """The name of the error of a call that is refused."""
        response = await self.call(method, **params)
        assert response.error is not None, f"{method}: {response.result}"
        return str(response.error["name"])

    async def goodbye(self) -> dict[str, Any]:
        """The last words, behind which the end comes; answers and events before them are skipped."""
        while not (isinstance(frame := await self.receive(), Notification) and frame.method == "goodbye"):
            assert frame is not None, "the connection ended without a goodbye"
        assert await self.receive() is None
        return dict(frame.params)


@dataclass
class FakeDaemon:
    api: Api
    bus: EventBus
    fakes: Fakes
    audit: Audit
    nursery: trio.Nursery
    stack: ExitStack  # of what is closed at the end

    def connect(self, peer: Peer = OPERATOR) -> Caller:
        """Open a connection without sending anything."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        caller = Caller(ours)
        self.stack.callback(caller.close)
        if peer.process is None:
            peer = replace(peer, process=self.fakes.find_process(peer.pid))
        self.api.begin_with(peer, theirs, self.nursery)
        return caller

    async def call_as(self, peer: Peer = OPERATOR) -> Caller:
        """Open a connection and send hello."""
        caller = self.connect(peer)
        await caller.ask("hello", version=VERSION)
        return caller

    def any_fd(self) -> int:
        """Return a descriptor of a file of two bytes; closed at the end."""
        made = os.memfd_create("any", os.MFD_CLOEXEC)
        self.stack.callback(os.close, made)
        os.write(made, b"{}")
        return made

    def listen(self, directory: Path) -> Path:
        """Serve all who connect, and return the socket's path."""
        path = directory / SOCKET
        listener = listen(path, MODE)
        self.stack.enter_context(listener)
        self.nursery.start_soon(self.api.serve, listener, self.nursery)
        return path

    def connections(self) -> int:
        return self.api._open.total()

    async def until(self, connections: int) -> None:
        """Returns when so many are left: the end of one is noticed in a moment."""
        with trio.fail_after(PATIENCE_SECONDS):
            while self.connections() != connections:  # noqa: ASYNC110
                await trio.sleep(0.005)


@asynccontextmanager
async def open_daemon(directory: Path, ranges: UidRanges = NO_RANGES, **settings: Any) -> AsyncIterator[FakeDaemon]:
    bus = EventBus(clock=lambda: NOW)
    fakes = furnished(bus.publish)
    with ExitStack() as stack:
        stack.callback(fakes.arenas.close_all)
        audit = stack.enter_context(open_audit(directory))
        api = Api(fakes.services(), ApiSettings(**settings), bus, audit, ranges)
        async with trio.open_nursery() as nursery:
            daemon = FakeDaemon(api, bus, fakes, audit, nursery, stack)
            try:
                yield daemon
            finally:
                nursery.cancel_scope.cancel()


def audit_in(directory: Path) -> Audit:
    return open_audit_files(str(directory), LogOptions(max_bytes=0))


def audit_text(directory: Path) -> str:
    """Return the text of all trails, the operators' first."""
    paths = [directory / trail.value for trail in Trail]
    return "".join(path.read_text() for path in paths if path.exists())


@contextmanager
def open_audit(directory: Path) -> Iterator[Audit]:
    audit = audit_in(directory)
    try:
        yield audit
    finally:
        audit.close()
