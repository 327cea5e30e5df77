"""Where numbers are asked for: a TCP port or a Unix socket, as `metrics.listen` says."""

import os
import socket
import stat
from dataclasses import dataclass

import trio

from mpsd.accept import UNIX, parse_address

_BACKLOG = 64
_MODE = 0o666  # the numbers are what mpsd.sock tells everybody too


@dataclass(frozen=True, slots=True)
class Door:
    """An open listener; leaving it closes it, and removes its name from the file system."""

    listener: trio.SocketListener
    path: str

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *error: object) -> None:
        self.listener.socket.close()
        if self.path:
            _remove(self.path)


def open_door(listen: str) -> Door:
    """Raises OSError."""
    path = listen.removeprefix(UNIX) if listen.startswith(UNIX) else ""
    sock = _at_path(path) if path else _at_address(listen)
    sock.setblocking(False)
    return Door(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), path)


def _at_address(listen: str) -> socket.socket:
    address = parse_address(listen)
    assert address is not None, "the configuration was checked"
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)


def _at_path(path: str) -> socket.socket:
    """In place of the socket of a dead daemon, and of nothing else."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove(path)
        sock.bind(path)
        os.chmod(path, _MODE)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _remove(path: str) -> None:
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except OSError:
        pass  # it is not there; where it cannot be removed, bind says so
