"""Listeners that end with mpsd, while clients have descriptors in connections that mpsd has not accepted."""

import os
import resource
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mpsd.errors import UnusablePath
from mpsd.host.listeners import leave_open, listen, listen_in

LINGER_SECONDS = 60


def lingering() -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket whose last close waits for LINGER_SECONDS, and its other end, which reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
    return sock, other


def test_no_client_delays_the_end(short_dir: Path) -> None:
    listener = listen(short_dir / "door", 0o600)
    number = listener.fileno()
    sock, other = lingering()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(short_dir / "door"))
        socket.send_fds(client, [b"x"], [sock.fileno()])
        os.close(sock.detach())
        began = time.monotonic()
        leave_open(listener)
        assert time.monotonic() - began < LINGER_SECONDS / 2
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late, pytest.raises(ConnectionRefusedError):
            late.connect(str(short_dir / "door"))
    other.close()  # nothing lingers any more
    os.close(number)


def test_without_a_descriptor_the_path_cannot_be_used(short_dir: Path) -> None:
    """mpsd, which makes a lost socket again, ended with OSError."""
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    directory = os.open(short_dir, os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, had[1]))
        with pytest.raises(UnusablePath, match="Too many open files"):
            listen_in(directory, short_dir / "door", 0o600)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, had)
        os.close(directory)
