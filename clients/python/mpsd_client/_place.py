"""Find mpsd's socket and connect to it."""

import errno
import os
import socket

from mpsd_client import _peer

SOCKET = "mpsd.sock"
DIRECTORIES = ("MPSD_PIPE_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY")  # mpsd's own first: CUDA's may name a domain's
DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
PATH_BYTES = 108  # size of sun_path, terminator included
BACKLOG_SECONDS = 0.01  # between attempts while mpsd's backlog is full


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """Return `path`, or mpsd.sock in the pipe directory that CUDA programs use."""
    if path is not None:
        return os.fspath(path)
    found = next(filter(None, map(os.environ.get, DIRECTORIES)), DEFAULT_DIRECTORY)
    return os.path.join(found, SOCKET)


def remember(path: str) -> None:
    """Keep the pipe directory of mpsd for this process and its children in MPSD_PIPE_DIRECTORY, as the shim does, before
    CUDA_MPS_PIPE_DIRECTORY is set to a domain's directory."""
    directory, name = os.path.split(path)
    if name == SOCKET:
        os.environ["MPSD_PIPE_DIRECTORY"] = directory


def new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def has_connected(sock: socket.socket, path: str) -> bool:
    """Connect to mpsd.  Return False if its backlog is full: try again in BACKLOG_SECONDS.  Raises PermissionError if the
    listener is another user than root or this one; OSError."""
    is_short = len(os.fsencode(path)) < PATH_BYTES
    number = sock.connect_ex(path) if is_short else errno.ENAMETOOLONG
    if number == errno.EAGAIN:
        return False
    if number:
        raise OSError(number, f"mpsd cannot be reached: {os.strerror(number)}", path)
    _peer.check(sock, path)
    return True
