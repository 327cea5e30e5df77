"""Where mpsd's socket is, and how it is reached."""

import errno
import os
import socket

from mpsd_client import _peer

SOCKET = "mpsd.sock"
DIRECTORIES = ("MPSD_PIPE_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY")  # the first is ours: where CUDA was led into a domain's own
DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
PATH_BYTES = 108  # sun_path, its end included
BACKLOG_SECONDS = 0.01  # between tries while mpsd has more arrivals than it has accepted


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """`path`, else mpsd.sock in the pipe directory that CUDA programs look into."""
    if path is not None:
        return os.fspath(path)
    found = next(filter(None, map(os.environ.get, DIRECTORIES)), DEFAULT_DIRECTORY)
    return os.path.join(found, SOCKET)


def remember(path: str) -> None:
    """For this process and those that it starts, before CUDA_MPS_PIPE_DIRECTORY becomes a domain's own; as the shim does."""
    directory, name = os.path.split(path)
    if name == SOCKET:
        os.environ["MPSD_PIPE_DIRECTORY"] = directory


def new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def has_connected(sock: socket.socket, path: str) -> bool:
    """False: its queue is full, try again in BACKLOG_SECONDS.  Raises PermissionError where another user listens, OSError."""
    is_short = len(os.fsencode(path)) < PATH_BYTES
    number = sock.connect_ex(path) if is_short else errno.ENAMETOOLONG
    if number == errno.EAGAIN:
        return False
    if number:
        raise OSError(number, f"mpsd cannot be reached: {os.strerror(number)}", path)
    _peer.check(sock, path)
    return True
