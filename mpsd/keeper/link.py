"""Exchange messages with a keeper over one connection: requests in windows, their replies, and the descriptors in them."""

import array
import errno
import socket
from collections.abc import Sequence
from contextlib import suppress

import trio
from msgspec import Struct

from mpsd.errors import KeeperFailed, ProtocolError
from mpsd.host import datagrams
from mpsd.host.descriptors import close_soon
from mpsd.keeper.messages import REPLY_BYTES, KeeperOp, Reply, pack_request, parse_reply

SECONDS = 10.0  # a keeper answers in microseconds; closing much GPU memory takes a tenth of a second
_WINDOW = 64  # pending requests: so few that neither side's queue of a socket's usual size overflows
_CROWDED_SECONDS = 0.001
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)  # an enum: joining them takes longer than packing a request


class HungUp(KeeperFailed):
    """It has closed the connection: it is ending, or has ended, or was not answered in time."""


class KeeperRequest(Struct, frozen=True):
    """A request.  The descriptor stays the caller's."""

    op: KeeperOp
    name: str = ""
    descriptor: int | None = None
    size: int = 0

    @property
    def may_be_quiet(self) -> bool:
        return self.op in (KeeperOp.PUT, KeeperOp.DROP)


class KeeperLink:
    """Guards that a connection with a failure is not used again.  One task at a time uses it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sequence = 0

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, end: socket.socket) -> None:
        """Take over a connection that does not block."""
        self.close()
        self._socket = end

    def close(self) -> None:
        if self._socket is not None:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._socket = None

    async def exchange(self, requests: Sequence[KeeperRequest]) -> list[tuple[Reply, list[int]]]:
        """Send the requests; return the replies with their descriptors.

        Shielded from cancellation, because requests that were sent are carried out.  Raise KeeperFailed; then the connection
        and all received descriptors are closed.
        """
        replies: list[tuple[Reply, list[int]]] = []
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SECONDS) as scope:
                for start in range(0, len(requests), _WINDOW):
                    await self._exchange_some(requests[start : start + _WINDOW], replies)
                    scope.deadline = trio.current_time() + SECONDS
            if not scope.cancelled_caught:
                return replies
            failure = KeeperFailed(f"the vault's keeper is silent for {SECONDS:g} s")
        except ConnectionError as exc:
            failure = HungUp(f"the vault's keeper hung up: {exc}")
        except (OSError, ProtocolError) as exc:
            failure = KeeperFailed(f"the vault's keeper did not answer: {exc}")
        self.close()
        close_soon([each for _, descriptors in replies for each in descriptors])
        raise failure

    async def see_end(self) -> None:
        """Wait until the other side has hung up, as it does when it ends; or for a limited time."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SECONDS):
            while self._socket is not None:
                await trio.lowlevel.wait_readable(self._socket)
                with suppress(OSError):
                    if self._socket.recv(REPLY_BYTES):
                        continue
                return

    async def _exchange_some(self, requests: Sequence[KeeperRequest], replies: list[tuple[Reply, list[int]]]) -> None:
        """Send some requests; quiet where possible, except the last: its reply shows that the others are done or refused."""
        last = 0
        for request in requests:
            self._sequence = last = (self._sequence + 1) & 0xFFFFFFFF
            data = pack_request(
                request.op,
                last,
                request.name,
                is_quiet=request.may_be_quiet and request is not requests[-1],
                generation=1 if request.op is KeeperOp.PUT else 0,
                size=request.size,
            )
            await self._send(data, request.descriptor)
        while not replies or replies[-1][0].sequence != last:
            replies.append(await self._receive())

    async def _send(self, data: bytes, descriptor: int | None) -> None:
        assert self._socket is not None, "nothing is said before it is reached"
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        while True:
            try:
                self._socket.sendmsg([data], rights, _AT_ONCE)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as exc:
                if exc.errno != errno.ETOOMANYREFS:
                    raise
                await trio.sleep(_CROWDED_SECONDS)

    async def _receive(self) -> tuple[Reply, list[int]]:
        assert self._socket is not None, "nothing is heard before it is reached"
        while True:
            try:
                found = datagrams.receive_now(self._socket, REPLY_BYTES)
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
        if not found.data:
            raise ConnectionResetError("the end came")
        descriptors = found.descriptors.take()
        try:
            return parse_reply(found.data), descriptors
        except ProtocolError:
            close_soon(descriptors)
            raise
