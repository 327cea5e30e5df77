"""mpsd's sockets: created through the descriptor of their directory, so that no other user can redirect them.

bind(2) takes only a path; /proc/self/fd/N/NAME is one that leads to the open directory, wherever its own path leads now.
"""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import trio

from mpsd.errors import UnusablePath
from mpsd.host.trusted_directories import open_directory

MAX_PATH_BYTES = 107  # sun_path less its final zero, unix(7)
_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn


def listen(path: Path, mode: int, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """Return a listening socket in a directory that others may share.  Raises UnusablePath."""
    try:
        directory = open_directory(path.parent, may_be_shared=True).descriptor
    except UnusablePath as exc:
        raise UnusablePath(f"cannot listen at {path}: {exc}") from None
    try:
        return listen_in(directory, path, mode, kind)
    finally:
        os.close(directory)


def listen_in(directory: int, path: Path, mode: int, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """Return a listening, non-blocking socket in an open directory; it replaces a file that a dead daemon left.

    path: as clients name it; its last name is used.  Raises UnusablePath.
    """
    encoded = os.fsencode(path)
    if len(encoded) > MAX_PATH_BYTES:
        raise UnusablePath(f"the socket path {path} has {len(encoded)} bytes; {MAX_PATH_BYTES} fit")
    listener: socket.socket | None = None
    try:
        listener = socket.socket(socket.AF_UNIX, kind)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        os.fchmod(listener.fileno(), 0o600)  # bind creates the file with the socket's mode; it is widened below
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        _set_mode(directory, path.name, mode)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener
    except OSError as exc:
        if listener is not None:
            listener.close()
        raise UnusablePath(f"cannot listen at {path}: {exc.strerror}") from None


def leave_open(listener: socket.socket | trio.socket.SocketType) -> None:
    """Refuse further connections, and leave it to the kernel to close the socket when mpsd exits.

    Clients may have sent descriptors into connections that mpsd has not accepted.  Closing the listener closes those too, which
    takes as long as a client likes (SO_LINGER), but not while a process exits.
    """
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.detach()


def _set_mode(directory: int, name: str, mode: int) -> None:
    """Set the mode through a descriptor of the socket file: chmod(2) would follow a link that replaced it.  Raises OSError."""
    file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            raise OSError(errno.EPERM, f"{name} was replaced while it was made")
        os.chmod(f"/proc/self/fd/{file}", mode)
    finally:
        os.close(file)
