"""Read and send one message of a SEQPACKET connection: its bytes, its descriptors, its sender's credentials.

A message is read whole or not at all: one that is larger than the kernel's own bound is refused, and one with descriptors
that do not fit now waits in its queue.  Linux: unix(7), recvmsg(2).
"""

import array
import socket
import struct
from collections.abc import Callable, Collection
from functools import partial

import trio
from msgspec import Struct

from mpsd.errors import ProtocolError
from mpsd.host.descriptors import Closings, close_soon
from mpsd.model.process import Credentials

MAX_BYTES = 256 * 1024  # above the largest datagram that a default SO_SNDBUF (212,992 bytes) allows
MAX_DESCRIPTORS = 253  # SCM_MAX_FD: the kernel sends no more, so that what does not fit is more than mpsd may open now
_UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
_ANCILLARY_BYTES = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_AGAIN_SECONDS = 0.25  # until mpsd looks again for room for a message's descriptors


class Message(Struct):
    """Owns its descriptors until they are sent or closed."""

    data: bytes
    descriptors: list[int]
    credentials: Credentials | None

    def close(self, close: Callable[[Collection[int]], None] = close_soon) -> None:
        """Close the descriptors in the background: those of other users may be slow to close (decision 019)."""
        descriptors, self.descriptors = self.descriptors, []
        if descriptors:
            close(descriptors)


class _NoRoom(Exception):
    """The descriptors of a message do not fit into those that mpsd may open."""


_buffer = bytearray(MAX_BYTES)  # only touched between two awaits: recvmsg_into, then a copy


async def receive(connection: socket.socket) -> Message | None:
    """Return the next message; None at the end of the stream.  `connection` is non-blocking with SO_PASSCRED set.

    A peer that closed with our messages unread counts as an end too.  Raise ProtocolError.
    """
    return await _next(connection, 0, None, 0)


async def look_at(connection: socket.socket, closings: Closings | None = None, share: int = 0) -> Message | None:
    """Do as `receive`, but leave the message in the queue until `take`: a process that dies in between loses nothing.

    closings: of a client's descriptors, which count against this share, and of which a few may be under way; None: a domain's.
    """
    return await _next(connection, socket.MSG_PEEK, closings, share)


def take(connection: socket.socket) -> None:
    """Remove the message that was looked at."""
    connection.recv(1, socket.MSG_TRUNC | socket.MSG_DONTWAIT)


async def _next(connection: socket.socket, how: int, closings: Closings | None, share: int) -> Message | None:
    while True:
        await trio.lowlevel.wait_readable(connection)  # for ever: the caller bounds it by who the peer is
        if closings is not None:
            await closings.room(share)
        try:
            return _receive_now(connection, how, close_soon if closings is None else partial(closings.begin, share))
        except (BlockingIOError, ConnectionResetError):
            continue  # the kernel reports a reset once, before the queued messages; after these comes the end
        except _NoRoom as exc:
            if not how & socket.MSG_PEEK:
                raise ProtocolError(str(exc)) from None
        await trio.sleep(_AGAIN_SECONDS)  # it is still queued; if mpsd dropped the connection, the client would run without MPS


def _receive_now(connection: socket.socket, how: int, close: Callable[[Collection[int]], None]) -> Message | None:
    """Return the next message, or raise for one that cannot be taken whole; `close` closes what came of its descriptors."""
    size, ancillary, flags, _ = connection.recvmsg_into([_buffer], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC | how)
    message = Message(bytes(_buffer[:size]), *_unpack(ancillary))
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        message.close(close)
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"a message over {MAX_BYTES} bytes was sent")
        raise _NoRoom("mpsd may open no further files for a message's descriptors")
    if not size and not ancillary:
        return None
    return message


def _unpack(ancillary: list[tuple[int, int, bytes]]) -> tuple[list[int], Credentials | None]:
    descriptors: array.array[int] = array.array("i")
    credentials = None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) // descriptors.itemsize * descriptors.itemsize])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            credentials = Credentials(*_UCRED.unpack(data[: _UCRED.size]))  # never mpsd's own: without any, pid 0
    return list(descriptors), credentials


async def send(connection: socket.socket, message: Message, credentials: Credentials | None) -> None:
    """Send it whole, as if it came from `credentials` (None: from ourselves).  Raise OSError when the peer has gone."""
    ancillary: list[tuple[int, int, bytes | array.array[int]]] = []
    if message.descriptors:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", message.descriptors)))
    if credentials is not None:
        packed = _UCRED.pack(credentials.pid, credentials.uid, credentials.gid)
        ancillary.append((socket.SOL_SOCKET, socket.SCM_CREDENTIALS, packed))
    while True:
        try:
            connection.sendmsg([message.data], ancillary, socket.MSG_NOSIGNAL)
            return
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)  # for ever: the caller bounds it by who the peer is
