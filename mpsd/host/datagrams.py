"""Datagrams of a Unix socket, with the descriptors that they carry."""

import errno
import select
import socket
import struct
from collections.abc import Collection

import trio
from msgspec import Struct

from mpsd.host.descriptors import ANCILLARY_BYTES, Descriptors, received, rights

_UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
_ROOM = socket.CMSG_SPACE(_UCRED.size) + ANCILLARY_BYTES
_LOOK_SECONDS = 1.0  # between checks whether a peer whose next request is already queued still waits for an answer
_FLIGHT_SECONDS = 0.01  # between attempts while too many descriptors of mpsd's user are in flight


class Datagram(Struct, frozen=True):
    """A received datagram; empty data is the end of the connection.  The receiver has to close its descriptors.

    sender_pid: of the process that sent it; 0 if that is not visible, or the socket lacks SO_PASSCRED.
    """

    data: bytes
    flags: int
    descriptors: Descriptors
    sender_pid: int = 0


def receive_now(sock: socket.socket, most_bytes: int) -> Datagram:
    """Receive one datagram without waiting; a longer one is cut, and its flags report that.

    Raises BlockingIOError if none is queued, OSError.
    """
    data, ancillary, flags, _ = sock.recvmsg(most_bytes, _ROOM, socket.MSG_CMSG_CLOEXEC)
    senders = [ids for level, kind, ids in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)]
    return Datagram(data, flags, received(ancillary), _UCRED.unpack(senders[0])[0] if senders else 0)


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
