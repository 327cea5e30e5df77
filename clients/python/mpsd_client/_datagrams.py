"""Datagrams of a connection to mpsd, with the descriptors that they carry."""

import errno
import os
import socket
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

MAX_BYTES = 64 * 1024
MOST_DESCRIPTORS = 128
CROWDED_SECONDS = 0.005
_ROOM = socket.CMSG_SPACE(MOST_DESCRIPTORS * array("i").itemsize)


@dataclass(frozen=True, slots=True)
class Datagram:
    """A received datagram.  data: empty at the end of the connection.  fds: the receiver has to close them.  is_cut: this
    process could not open all descriptors that came with it."""

    data: bytes
    fds: tuple[int, ...] = ()
    is_cut: bool = False


def receive(sock: socket.socket, most_bytes: int = MAX_BYTES) -> Datagram:
    """Receive a datagram with its descriptors, which programs that are started later do not inherit.  Raises OSError."""
    data, ancillary, flags, _ = sock.recvmsg(most_bytes, _ROOM, socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, found in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(found[: len(found) - len(found) % fds.itemsize])
    return Datagram(data, tuple(fds), bool(flags & socket.MSG_CTRUNC))


def send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> bool:
    """Send a datagram.  The caller keeps the descriptors: the kernel sends duplicates.  Raises OSError.

    Return False if this user has too many descriptors in flight (RLIMIT_NOFILE): try again in CROWDED_SECONDS."""
    try:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else [])
    except OSError as exc:
        if exc.errno != errno.ETOOMANYREFS:
            raise
        return False
    return True


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
