"""Where mpsd's socket is, and how it is reached."""

import errno
import os
import socket

SOCKET = "mpsd.sock"
DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
BACKLOG_SECONDS = 0.01  # between tries while mpsd has more arrivals than it has accepted


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """`path`, else mpsd.sock in the pipe directory that CUDA programs look into."""
    if path is not None:
        return os.fspath(path)
    return os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_DIRECTORY, SOCKET)


def new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def has_connected(sock: socket.socket, path: str) -> bool:
    """False: its queue is full, try again in BACKLOG_SECONDS.  Raises OSError."""
    number = sock.connect_ex(path)
    if number == errno.EAGAIN:
        return False
    if number:
        raise OSError(number, os.strerror(number), path)
    return True
