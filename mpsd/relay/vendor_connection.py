"""Connect to a vendor daemon."""

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Protocol

import trio

_BUSY_SECONDS = 0.01  # between attempts when a vendor daemon's queue of connections is full


class VendorDaemon(Protocol):
    def is_alive(self) -> bool: ...


async def connect(path: str, daemon: VendorDaemon) -> socket.socket | None:
    """Connect to the daemon; wait while its queue is full.  Return None if the daemon has died."""
    backend = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend.setblocking(False)
    backend.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    while True:
        try:
            backend.connect(path)
            return backend
        except OSError:
            if not daemon.is_alive():
                backend.close()
                return None
            await trio.sleep(_BUSY_SECONDS)


async def until_read(backend: socket.socket, may_go_on: Callable[[], bool]) -> None:
    """Wait until the daemon has read all that was sent, or `may_go_on` is false: closing does not take messages back."""
    while may_go_on() and _unread_bytes(backend):  # noqa: ASYNC110  the kernel reports no event for it
        await trio.sleep(_BUSY_SECONDS)


def _unread_bytes(backend: socket.socket) -> int:
    (found,) = struct.unpack("i", fcntl.ioctl(backend, termios.TIOCOUTQ, struct.pack("i", 0)))
    return int(found)
