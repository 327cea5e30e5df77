"""Connect to a vendor daemon."""

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

_BUSY_SECONDS = 0.01  # between attempts when a vendor daemon's queue of connections is full
_DISCARDED = 64  # answers, in one turn of the event loop


class VendorDaemon(Protocol):
    def is_alive(self) -> bool: ...


async def connect(path: str, daemon: VendorDaemon) -> socket.socket | None:
    """Connect to the daemon; wait while its queue is full, or mpsd may open no socket.  Return None if the daemon has died."""
    while True:
        try:
            return _connect_now(path)
        except OSError:
            if not daemon.is_alive():
                return None
            await trio.sleep(_BUSY_SECONDS)


def _connect_now(path: str) -> socket.socket:
    backend = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        backend.setblocking(False)
        backend.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        backend.connect(path)
    except OSError:
        backend.close()
        raise
    return backend


async def until_read(backend: socket.socket, may_go_on: Callable[[], bool]) -> None:
    """Wait until the daemon has read all that was sent, or `may_go_on` is false: closing does not take messages back.

    Its answers are discarded meanwhile: a daemon that has no room for an answer reads nothing.
    """
    while may_go_on() and _unread_bytes(backend):
        await trio.sleep(_BUSY_SECONDS)  # first: if mpsd leaves, the answers stay for the next mpsd
        _discard(backend)


def _discard(backend: socket.socket) -> None:
    with suppress(OSError):  # none is there, or the daemon has ended
        for _ in range(_DISCARDED):
            backend.recv(1, socket.MSG_DONTWAIT)


def _unread_bytes(backend: socket.socket) -> int:
    (found,) = struct.unpack("i", fcntl.ioctl(backend, termios.TIOCOUTQ, struct.pack("i", 0)))
    return int(found)
