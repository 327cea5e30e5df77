"""Connect to a vendor daemon."""

import socket
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
