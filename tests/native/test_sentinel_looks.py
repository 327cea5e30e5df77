"""The looks of mpsd-sentinel at the clients after an exception, on the simulator."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.sentinel_fixtures import armed_sentinel, built_sentinel, hold, lives_on, shared_sm, two_clients  # noqa: F401
from tests.native.sentinel_process import CONTAINED, FAILED, FAULT, HOLDS, Sentinel
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import SANITIZER, Machine, eventually

MAPS_MUCH = """
import mmap, sys, time
pages = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (at % 2 and mmap.PROT_WRITE)) for at in range(50_000)]
sys.stdout.write(".")
sys.stdout.flush()
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(SANITIZER == "thread", reason="the watcher forks")


@pytest.fixture
def slow_rm(machine: Machine) -> None:
    """RM answers the first question about an exception two seconds late."""
    machine.knobs["MPSD_SIM_SM_READ_MS"] = "2000"


@pytest.mark.usefixtures("shared_sm")
def test_all_looks_are_told_also_where_containment_fails(mps: Machine, sentinel: Sentinel) -> None:
    """The program ended after 10 ms: on a busy machine before all looks had come, and no culprit was named."""
    victim, culprit = two_clients(mps, sentinel, "misaligned")
    crowded = subprocess.Popen([sys.executable, "-c", MAPS_MUCH], stdout=subprocess.PIPE)  # so that the look takes long
    mps.started.append(crowded)  # type: ignore[arg-type]
    assert crowded.stdout
    assert crowded.stdout.read(1) == b"."
    sentinel.add(crowded.pid)
    culprit.open_gate()
    assert sentinel.comes(FAILED)
    assert hold(sentinel, 3)
    assert {each.pid: bool(each.is_culprit) for each in sentinel.of(HOLDS)} == {
        victim.pid: False, culprit.pid: True, crowded.pid: False,
    }  # fmt: skip
    assert sentinel.process.wait(20) == 1


@pytest.mark.usefixtures("slow_rm")
def test_a_culprit_that_ends_before_rm_answers_is_held_and_known(mps: Machine, sentinel: Sentinel) -> None:
    """RM answered 80 ms late while it handled a fault of another GPU (docs/measurements.md, run T): the culprit had ended by
    then, no look found the program counter, and its descriptors were held too late or never."""
    victim, culprit = two_clients(mps, sentinel, "misaligned")
    culprit.open_gate()
    assert eventually(lambda: waiting_holders(sentinel) == 2)
    culprit.process.kill()
    culprit.process.wait(20)
    assert not sentinel.of(FAULT)
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 2)
    assert {each.pid: bool(each.is_culprit) for each in sentinel.of(HOLDS)} == {victim.pid: False, culprit.pid: True}
    assert lives_on(victim)


def waiting_holders(sentinel: Sentinel) -> int:
    """How many of its holders wait for the program counter."""
    children = Path(f"/proc/{sentinel.process.pid}/task/{sentinel.process.pid}/children").read_text().split()
    return sum("pipe" in Path(f"/proc/{each}/wchan").read_text() for each in children)
