"""mpsd-sentinel on the simulator: exceptions that all SMs report."""

import ctypes
from collections.abc import Iterator

import pytest

from tests.native.sentinel_fixtures import armed_sentinel, built_sentinel, lives_on, two_clients  # noqa: F401
from tests.native.sentinel_process import CONTAINED, FAILED, FAULT, Sentinel
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import SANITIZER, Machine

AT_SECOND = 10
SMS = 132  # of the simulated GPU
AGAIN = 8  # the simulated GPU reports a trap so often after the first time
PERSONALITY_NOW, ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000

pytestmark = [
    pytest.mark.skipif(SANITIZER == "thread", reason="the watcher forks"),
    pytest.mark.usefixtures("wide_exceptions"),
]


@pytest.fixture
def wide_exceptions(machine: Machine) -> None:
    """All SMs report each exception, and a trap again after RESUME."""
    machine.knobs["MPSD_SIM_SM_WIDE"] = str(AGAIN)


@pytest.fixture
def fixed_addresses() -> Iterator[None]:
    """Programs have the same addresses in all processes, as a user can choose for own ones."""
    libc = ctypes.CDLL(None)
    before = libc.personality(PERSONALITY_NOW)
    libc.personality(before | ADDR_NO_RANDOMIZE)
    yield
    libc.personality(before)


def test_a_trap_on_all_sms_is_resumed_until_all_its_blocks_have_ended(mps: Machine, sentinel: Sentinel) -> None:
    """Five of 28 were reported again, 45 to 300 ms after the first event; in three five RESUMEs were not enough (H200)."""
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert lives_on(victim)
    assert [each.count for each in sentinel.of(FAULT)] == [SMS]
    assert sentinel.wait_for(lambda reports: sum(each.kind == CONTAINED for each in reports) > AGAIN)
    assert [each.count for each in sentinel.of(CONTAINED)] == [*range(1, AGAIN + 2)]
    assert not sentinel.of(FAILED)


@pytest.mark.usefixtures("fixed_addresses")
def test_a_second_failed_warp_on_all_sms_ends_all(mps: Machine, sentinel: Sentinel) -> None:
    """With the same program counter it passed for the first: after RESUME a client with long kernels hangs."""
    victim, first = two_clients(mps, sentinel, "misaligned")
    second = mps.client("faulter", "misaligned", "--gate", "--linger", "60")
    second.wait_for("ready")
    first.open_gate()
    assert sentinel.comes(CONTAINED)
    second.open_gate()
    failed = sentinel.comes(FAILED)
    assert failed
    assert failed.count == AT_SECOND
    assert victim.end()["code"] == 716
