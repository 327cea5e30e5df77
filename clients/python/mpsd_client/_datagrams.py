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
    """No data is the end.  fds: whoever has it sees to them.  is_cut: this process could not open as many as came."""

    data: bytes
    fds: tuple[int, ...] = ()
    is_cut: bool = False


def receive(sock: socket.socket) -> Datagram:
    """Raises OSError."""
    data, ancillary, flags, _ = sock.recvmsg(MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, found in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(found[: len(found) - len(found) % fds.itemsize])
    return Datagram(data, tuple(fds), bool(flags & socket.MSG_CTRUNC))


def send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> bool:
    """The descriptors stay the caller's: the kernel has its own.  Raises OSError.

    False: too many descriptors of this user are on their way (RLIMIT_NOFILE); try again in CROWDED_SECONDS."""
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
