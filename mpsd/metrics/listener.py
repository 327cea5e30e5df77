"""Open the socket for the metrics: a TCP port or a Unix socket, as `metrics.listen` names it."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import trio
from msgspec import Struct

from mpsd.config.value_checks import UNIX, parse_address
from mpsd.errors import UnusablePath
from mpsd.host.listeners import leave_open, listen

_BACKLOG = 64
_MODE = 0o666  # mpsd.sock gives all users the same numbers


class MetricsListener(Struct, frozen=True):
    """An open listener; leaving it refuses further connections, and removes its name from the file system."""

    listener: trio.SocketListener
    path: str

    def __enter__(self) -> "MetricsListener":
        return self

    def __exit__(self, *error: object) -> None:
        leave_open(self.listener.socket)
        if self.path:
            _remove(self.path)


def open_door(listen: str) -> MetricsListener:
    """Open the listener.  Raise OSError."""
    path = listen.removeprefix(UNIX) if listen.startswith(UNIX) else ""
    sock = _at_path(path) if path else _at_address(listen)
    sock.setblocking(False)
    return MetricsListener(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), path)


def _at_address(listen: str) -> socket.socket:
    address = parse_address(listen)
    assert address is not None, "the configuration was checked"
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)


def _at_path(path: str) -> socket.socket:
    """Listen at the path, replacing the socket of a dead daemon but no other file.  Raise OSError."""
    _refuse_other_file(path)
    try:
        return listen(Path(path), _MODE, socket.SOCK_STREAM)
    except UnusablePath as exc:
        raise OSError(errno.EACCES, str(exc)) from None


def _refuse_other_file(path: str) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return  # it does not exist; if it cannot be made, bind reports that
    if not is_socket:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _remove(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
