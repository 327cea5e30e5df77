"""A disk that takes a tenth of a second for each fsync: the caller who changes a lease waits for it, and no other does."""

import subprocess
import time
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from tests.integration.machine import Machine

SOURCE = Path(__file__).with_name("slow_disk.c")
FSYNC_SECONDS = 0.1
CHECKPOINT_SECONDS = 6.0  # runtime/write_back.py looks every 5 s


@pytest.fixture
def slow(machine: Machine) -> Machine:
    """A machine whose mpsd, keepers and vendor daemons wait for their disk."""
    library = machine.place / "slow_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
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
    assert slow.blocks() == []
