"""A sentinel in a simulated server, and two clients of that server."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.sentinel_process import ARMED, HOLDS, Sentinel
from tests.native.sim_machine import ROOT, Client, Machine


@pytest.fixture(name="program", scope="module", autouse=True)
def built_sentinel() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "native/sentinel"], check=True)


@pytest.fixture(name="sentinel")
def armed_sentinel(mps: Machine, program: None) -> Iterator[Sentinel]:
    """Armed, in the server of `mps`."""
    made = Sentinel(mps.place, mps.library_environment())
    try:
        assert made.comes(ARMED)
        yield made
    finally:
        made.close()


@pytest.fixture
def shared_sm(machine: Machine) -> None:
    """The SM of each exception has a block of another client."""
    machine.knobs["MPSD_SIM_SM_SHARED"] = "1"


def counter(mps: Machine, **more: Any) -> Client:
    victim = mps.client("counter", "--seconds", "60", "--until-release", "--ms", "20", **more)
    victim.wait_for("ready")
    return victim


def two_clients(mps: Machine, sentinel: Sentinel, mode: str) -> tuple[Client, Client]:
    victim = counter(mps)
    culprit = mps.client("faulter", mode, "--gate", "--linger", "60")
    culprit.wait_for("ready")
    for each in (victim, culprit):
        sentinel.add(each.pid)
    return victim, culprit


def hold(sentinel: Sentinel, count: int) -> bool:
    return sentinel.wait_for(lambda reports: sum(each.kind == HOLDS for each in reports) == count)


def lives_on(victim: Client) -> bool:
    """Check that it goes on, ends by itself when it is released, and counted each kernel once."""
    last = victim.released()
    return last["event"] == "end" and last["count"] == last["kernels"]


def count_of_descriptors(sentinel: Sentinel, word: str) -> int:
    count = 0
    for each in Path(f"/proc/{sentinel.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            count += word in os.readlink(each)
    return count
