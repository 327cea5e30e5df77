"""A disk that takes a tenth of a second for each fsync, write and rename: only a caller who changes a lease waits."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Selector, calls

from tests.integration.machine import Machine
from tests.integration.process import wait_for

SOURCE = Path(__file__).with_name("slow_disk.c")
FSYNC_SECONDS = 0.1
READY_SECONDS = 30.0
CHECKPOINT_SECONDS = 6.0  # storage/checkpointing.py looks every 5 s


@pytest.fixture
def slow(machine: Machine) -> Machine:
    """A machine whose mpsd, keepers and vendor daemons wait for their disk."""
    library = machine.place / "slow_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    machine.configure("[domains]\nspares = 0\nidle_seconds = 1.0\n")
    machine.start(LD_PRELOAD=str(library))
    return machine


def test_no_one_but_the_caller_waits_for_the_disk(slow: Machine) -> None:
    """On the event loop each commit of leases.db waited, and the first one of each database after its log was brought in."""
    answers = []  # seconds
    with slow.mpsd() as mpsd:
        begun = time.monotonic()
        lease = mpsd.ask(calls.lease_create("job", Selector.of_uid(1000), sm_percent=30))
        answers.append(time.monotonic() - begun)
        slow.counter(uid=1000).ready()
        until = time.monotonic() + CHECKPOINT_SECONDS
        while time.monotonic() < until:
            mpsd.ask(calls.health())
            time.sleep(0.05)
        slow.counter(uid=1001).ready()  # the first commits since
        begun = time.monotonic()
        mpsd.ask(calls.lease_release(lease.id))
        answers.append(time.monotonic() - begun)
    assert min(answers) >= FSYNC_SECONDS  # it is preloaded, and the answer waits
    assert waits(slow) == []


def test_no_task_waits_while_domains_come_and_go(slow: Machine) -> None:
    """Directories, records and lines of the public logs are written by threads."""
    client = slow.counter(uid=1000).ready()
    other = slow.counter(uid=1001).ready(READY_SECONDS)
    name = slow.domain_of(other)
    other.end()
    wait_for("the end of its domain", lambda: name not in slow.domains(), READY_SECONDS)
    slow.signal_daemon("SIGHUP")
    slow.wait_for_journal("reload.done")
    slow.counter(uid=1002).ready(READY_SECONDS)
    client.goes_on()
    assert waits(slow) == []


def waits(machine: Machine) -> list[dict[str, Any]]:
    """Return the steps of the event loop that waited in a system call for as long as the disk takes."""
    return [each for each in machine.journal("loop.blocked") if each["ms"] - each["busy_ms"] > 0.9e3 * FSYNC_SECONDS]
