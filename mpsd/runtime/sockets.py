"""mpsd's sockets in the public pipe directory."""

import os
import socket
from pathlib import Path

from mpsd.errors import UnusablePath

MAX_PATH_BYTES = 107  # sun_path less its final zero, unix(7)
_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn


def listen(path: Path, mode: int) -> socket.socket:
    """A listening SEQPACKET socket at `path`, replacing whatever a dead daemon left there.  Raises UnusablePath."""
    encoded = os.fsencode(path)
    if len(encoded) > MAX_PATH_BYTES:
        raise UnusablePath(f"the socket path {path} has {len(encoded)} bytes; {MAX_PATH_BYTES} fit")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.unlink(missing_ok=True)
        listener.bind(encoded)
        os.chmod(path, mode)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise UnusablePath(f"cannot listen at {path}: {exc.strerror}") from None
    listener.setblocking(False)
    return listener



def inode_of(path: Path) -> int:
    """The number of the file at `path`, 0 without one: a listener is reachable while it is the one it was bound with."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0
