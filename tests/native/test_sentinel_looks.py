"""The looks of mpsd-sentinel at the clients after an exception, on the simulator."""

import subprocess
import sys

import pytest

from tests.native.sentinel_fixtures import armed_sentinel, built_sentinel, hold, shared_sm, two_clients  # noqa: F401
from tests.native.sentinel_process import FAILED, HOLDS, Sentinel
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import SANITIZER, Machine

MAPS_MUCH = """
import mmap, sys, time
pages = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (at % 2 and mmap.PROT_WRITE)) for at in range(50_000)]
sys.stdout.write(".")
sys.stdout.flush()
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(SANITIZER == "thread", reason="the watcher forks")


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
