"""A full disk below the state directory: programs start if a domain exists for them, and all others get the reason."""

import ctypes
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.machine import Machine
from tests.integration.process import wait_for

CLONE_NEWNS = 0x00020000  # linux/sched.h
READY_SECONDS = 8.0  # 15 to 20 before; 0.1 to 0.2 now, on a machine that does nothing else


@functools.cache
def leave_mount_namespace() -> None:
    """What is mounted from here on is seen by this process and its children alone, and goes with them."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@pytest.fixture
def small(machine: Machine) -> Iterator[Machine]:
    """A machine with 2 MiB for its state."""
    leave_mount_namespace()
    machine.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=711", "none", machine.state], check=True)
    yield machine
    machine.end_children()
    machine.end_processes()
    subprocess.run(["umount", "-l", machine.state], check=True)


def fill(directory: Path) -> Path:
    made = directory / "filled"
    with made.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return made


def test_programs_start_as_ever_and_those_without_a_domain_are_told_why_not(small: Machine) -> None:
    """A fifth user was put into another user's domain, since no news came from a log that could not be written."""
    small.start()
    first = small.counter(uid=1000).ready()
    small.with_spare()
    filled = fill(small.state)
    for _ in range(3):
        small.counter(uid=1000).ready(READY_SECONDS)
    other = small.counter(uid=1001).ready(READY_SECONDS)
    assert small.domain_of(other) != small.domain_of(first) == "default"
    late = small.counter(uid=1002)
    with small.mpsd() as mpsd:
        [entry] = wait_for("the reason", lambda: [e for e in mpsd.ask(calls.queue_list()).items if "is full" in e.reason])
        assert entry.pid == late.pid
        problems = wait_for("the problem", lambda: mpsd.ask(calls.health()).problems)
        assert any("the disk of the state directory" in problem for problem in problems)
    filled.unlink()
    late.ready(30.0)
    assert small.domain_of(late) not in (small.domain_of(first), small.domain_of(other))


def test_mpsd_starts_after_a_kill_without_room_on_the_disk(small: Machine) -> None:
    small.start()
    client = small.counter(uid=1000).ready()
    small.with_spare()
    fill(small.state)
    small.kill_daemon()
    small.start()
    small.counter(uid=1000).ready(READY_SECONDS)
    client.goes_on()
