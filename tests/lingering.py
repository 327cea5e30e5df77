"""A descriptor whose close waits, as a stranger can make one and send it to mpsd."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def lingering() -> Iterator[int]:
    """Yield a connection whose last close waits for ten seconds, since no process reads its unsent data."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.socket() as sock:
            sock.connect(listener.getsockname())
            sock.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sock.send(bytes(65536))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
            sock.setblocking(True)
            fd = sock.detach()
            yield fd
    # its peer has never accepted it; when the listener closes, the connection ends
