"""systemd and the front end get the expected messages, and mpsd works without them."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.app.readiness import Notifier, answer_ready


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[tuple[socket.socket, str]]:
    """The listening side, and its name as NOTIFY_SOCKET has it."""
    name = str(short_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name if request.param == "path" else "\0" + name)
        listening.settimeout(5)
        yield listening, name if request.param == "path" else "@" + name


def test_systemd_hears_of_each_change(systemd: tuple[socket.socket, str]) -> None:
    listening, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})

    assert notifier.ready()
    assert f"READY=1\nMAINPID={os.getpid()}\n" in listening.recv(4096).decode()

    assert notifier.status("two\nlines")
    assert listening.recv(4096) == b"STATUS=two lines"

    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notifier.reloading()
    first, second = listening.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= before + 5_000_000

    assert notifier.stopping()
    assert listening.recv(4096) == b"STOPPING=1"


@pytest.mark.parametrize("name", ["", "/nonexistent", "@nobody", "vsock:2:1234", "/" + "x" * 200, "@" + "x" * 200])
def test_without_a_listener_nothing_happens(name: str) -> None:
    assert not Notifier({"NOTIFY_SOCKET": name}).ready()


def test_a_full_queue_of_systemd_is_not_waited_for(short_dir: Path) -> None:
    name = str(short_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        notifier = Notifier({"NOTIFY_SOCKET": name})
        while notifier.stopping():
            pass  # until the queue is full; the test's deadline stands


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [(0, "", b"0\n"), (1, "No device.\n", b"1\nNo device.\n"), (2, "x" * 9999, b"2\n" + b"x" * 4094)],
    ids=["ready", "refused", "long"],
)
def test_the_front_end_is_answered_once(status: int, message: str, said: bytes) -> None:
    reader, writer = os.pipe()
    answer_ready(writer, status, message)
    assert os.read(reader, 65536) == said
    assert os.read(reader, 1) == b""  # closed
    os.close(reader)


def test_a_front_end_that_is_gone_harms_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer_ready(writer, 0)
    answer_ready(writer, 0)  # and a descriptor that is no longer valid
    answer_ready(None, 0)
