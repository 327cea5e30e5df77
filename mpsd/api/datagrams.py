"""Datagrams of one connection, with the descriptors that they carry; what they mean is in connection.py."""

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

_LOOK_SECONDS = 1.0  # between looks whether somebody whose next request is already there still waits for an answer
_FLIGHT_SECONDS = 0.01  # between tries while too many descriptors of our user are on their way


@dataclass(frozen=True, slots=True)
class Datagram:
    """As it came; no data is the end.  Whoever has it sees to its descriptors."""

    data: bytes
    flags: int
    descriptors: Descriptors


def receive_now(sock: socket.socket) -> Datagram:
    """Raises BlockingIOError where nothing has come, OSError."""
    data, ancillary, flags, _ = sock.recvmsg(MAX_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    return Datagram(data, flags, received(ancillary))


def parse(datagram: Datagram) -> Request:
    """Raises ProtocolError for what is no request, is too large, or had more descriptors than there was room for."""
    if datagram.flags & socket.MSG_TRUNC:
        raise ProtocolError(f"a datagram has more than {MAX_BYTES} bytes")
    if datagram.flags & socket.MSG_CTRUNC or len(datagram.descriptors) > MOST_DESCRIPTORS:
        raise ProtocolError(f"a datagram carries more than {MOST_DESCRIPTORS} descriptors, or more than mpsd can open")
    request = decode(datagram.data)
    if not isinstance(request, Request):
        raise ProtocolError("only requests come from clients")
    return request


async def send(sock: socket.socket, data: bytes, fds: Collection[int] = ()) -> None:
    """When there is room.  The descriptors stay the caller's: the kernel has its own.  Raises OSError."""
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
    """Until the peer has closed its end; not when it only says no more.  Nobody else may wait for the socket meanwhile."""
    poll = select.poll()
    poll.register(sock, 0)  # POLLHUP is told unasked
    while not poll.poll(0):
        await trio.lowlevel.wait_readable(sock)
        if not poll.poll(0):
            await trio.sleep(_LOOK_SECONDS)
