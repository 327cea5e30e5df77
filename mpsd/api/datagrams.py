"""The datagrams of one connection, and the descriptors that they carry; connection.py interprets them."""

import errno
import select
import socket
from collections.abc import Collection
from dataclasses import dataclass

import trio

from mpsd.arena import MOST_DESCRIPTORS
from mpsd.descriptors import ANCILLARY_BYTES, Descriptors, received, rights
from mpsd.errors import ProtocolError
from mpsd.wire.rpc import MAX_BYTES, Request, decode

_LOOK_SECONDS = 1.0  # between checks whether a peer whose next request is already queued still waits for an answer
_FLIGHT_SECONDS = 0.01  # between attempts while too many descriptors of mpsd's user are in flight


@dataclass(frozen=True, slots=True)
class Datagram:
    """A received datagram; empty data is the end of the connection.  The receiver has to close its descriptors."""

    data: bytes
    flags: int
    descriptors: Descriptors


def receive_now(sock: socket.socket, most_bytes: int) -> Datagram:
    """Receive one datagram without waiting; a longer one is cut, and its flags say so.

    Raises BlockingIOError if none is queued, OSError.
    """
    data, ancillary, flags, _ = sock.recvmsg(most_bytes, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    return Datagram(data, flags, received(ancillary))


def parse(datagram: Datagram) -> Request:
    """Decode a request.  Raises ProtocolError if it is not one, is too large, or had more descriptors than fit."""
    if datagram.flags & socket.MSG_TRUNC:
        raise ProtocolError(f"a datagram has more than {MAX_BYTES} bytes")
    if datagram.flags & socket.MSG_CTRUNC or len(datagram.descriptors) > MOST_DESCRIPTORS:
        raise ProtocolError(f"a datagram carries more than {MOST_DESCRIPTORS} descriptors, or more than mpsd can open")
    request = decode(datagram.data)
    if not isinstance(request, Request):
        raise ProtocolError("only requests come from clients")
    return request


async def send(sock: socket.socket, data: bytes, fds: Collection[int] = ()) -> None:
    """Send a datagram, waiting for room.  The caller keeps its descriptors: the kernel has its own copies.  Raises OSError."""
    while True:
        try:
            sock.sendmsg([data], rights(fds), socket.MSG_NOSIGNAL)
            return
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
        except OSError as exc:
            if exc.errno != errno.ETOOMANYREFS:
                raise
            await trio.sleep(_FLIGHT_SECONDS)


async def until_gone(sock: socket.socket) -> None:
    """Wait until the peer has closed its end; shutting down its sending side is not enough.

    No other task may wait for the socket at the same time.
    """
    poll = select.poll()
    poll.register(sock, 0)  # poll reports POLLHUP even if it was not asked for
    while not poll.poll(0):
        await trio.lowlevel.wait_readable(sock)
        if not poll.poll(0):
            await trio.sleep(_LOOK_SECONDS)
