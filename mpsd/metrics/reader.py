"""A reader's connection to the Unix socket of the metrics, which may bring descriptors: they are closed in threads.

The kernel drops descriptors that a program leaves no room for while the program reads, and closing may take as long as their
sender likes (docs/decisions/019-a-strangers-descriptor-may-not-answer.md).
"""

import socket
from contextlib import suppress

import trio

from mpsd.fairness.uid_ranges import UidRanges
from mpsd.host.arrivals import hang_up
from mpsd.host.datagrams import receive_now
from mpsd.host.descriptors import Closings
from mpsd.host.peers import peer_credentials
from mpsd.host.sock_diag import tcp_user

_RECEIVE_BYTES = 4096
_NETWORK_BYTES = 8  # of an IPv6 address: one machine has all of such a network; an IPv4 address is shorter


class UnixReader(trio.abc.Stream):
    """Guards that no read and no close of the connection waits for a descriptor from the peer.  It owns the socket."""

    def __init__(self, sock: socket.socket, closings: Closings, ranges: UidRanges) -> None:
        self._sock = sock
        # Else the kernel drops a byte that was sent out of band, with its descriptors, as a later read passes it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._closings = closings
        self._share = ranges.share_of(peer_credentials(sock).uid)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            await self._closings.room(self._share)
            try:
                received = receive_now(self._sock, max_bytes or _RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError from exc
            await self._closings.close(self._share, received.descriptors.take())
            return received.data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
            except OSError as exc:
                raise trio.BrokenResourceError from exc

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    async def aclose(self) -> None:
        hang_up(self._sock)
        await trio.lowlevel.checkpoint()


def share_at(stream: trio.SocketStream, ranges: UidRanges) -> int | str:
    """Return the share of the places that a connection counts against: a user's of this machine, or another machine's."""
    sock = stream.socket
    with suppress(OSError):  # it has hung up
        if sock.family == socket.AF_UNIX:
            return ranges.share_of(peer_credentials(sock).uid)  # type: ignore[arg-type]  # trio's has the same methods
        peer, own = sock.getpeername()[:2], sock.getsockname()[:2]
        with suppress(OSError):  # a kernel without CONFIG_INET_DIAG
            if (uid := tcp_user(sock.family, peer, own)) is not None:
                return ranges.share_of(uid)
        packed = socket.inet_pton(sock.family, peer[0].partition("%")[0])
        return packed[:_NETWORK_BYTES].hex()
    return ""


def guarded(stream: trio.SocketStream, closings: Closings, ranges: UidRanges) -> trio.abc.Stream:
    """Return a stream on the same socket, where descriptors can come with the bytes."""
    if stream.socket.family != socket.AF_UNIX:
        return stream
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return UnixReader(sock, closings, ranges)
