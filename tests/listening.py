"""A socket that takes connections as mpsd's do."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def listening(directory: Path) -> Iterator[socket.socket]:
    """Yield a listener at the name `door` in the directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(directory / "door"))
        listener.listen()
        listener.setblocking(False)
        yield listener
