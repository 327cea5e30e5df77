"""Core dumps of the simulator, read as mpsd reads those of a real driver."""

import os
import socket
from pathlib import Path

import pytest

from mpsd.faults.sources.core_dump_file import CoreFile, parse_core
from mpsd.faults.sources.core_dumps import environment
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import Machine, eventually

# mode, the exception, the final errors of the culprit and of a co-runner, whether another SM shows it to all
CLASSES = [
    ("trap", "TRAP", 719, 719, False),
    ("misaligned", "WARP_MISALIGNED_ADDRESS", 0, 716, True),
    ("illegal_instruction", "WARP_ILLEGAL_INSTRUCTION", 715, 715, True),
]


@pytest.fixture
def cores(tmp_path: Path) -> Path:
    return tmp_path


def read(cores: Path, pid: int) -> CoreFile:
    data = (cores / f"core.{socket.gethostname()}.{pid}").read_bytes()
    return parse_core(lambda offset, size: data[offset : offset + size], len(data))


@pytest.mark.parametrize(("mode", "name", "mine", "theirs", "is_shown"), CLASSES, ids=[row[0] for row in CLASSES])
def test_everybody_writes_a_dump_and_only_the_culprits_accuses(
    mps: Machine, cores: Path, mode: str, name: str, mine: int, theirs: int, is_shown: bool
) -> None:
    victim = mps.client("counter", "--seconds", "8", **environment(cores))
    victim.wait_for("ready")
    culprit = mps.client("faulter", mode, **environment(cores))
    assert culprit.wait_for("result")["code"] in (mine, theirs)  # success, where the others' error comes too late for it
    guilty = read(cores, culprit.pid)  # it is complete by then
    assert victim.end()["code"] == theirs
    innocent = read(cores, victim.pid)
    culprit.end()
    assert [each.name for each in guilty.exceptions] == [name]
    assert (guilty.kernel, guilty.clears, guilty.host_threads) == (mode, False, (culprit.pid,))
    assert (innocent.has_exception, innocent.clears) == (False, True)
    assert bool(innocent.sm_kinds) == is_shown


def test_an_assert_of_a_client_that_writes_dumps_ends_its_co_runners(mps: Machine, cores: Path) -> None:
    """Measured on an H200, 12 of 12; without dumps it ends its client alone (test_sim_faults.py)."""
    victim = mps.client("counter", "--seconds", "8", **environment(cores))
    victim.wait_for("ready")
    culprit = mps.client("faulter", "assert_fail", **environment(cores))
    assert culprit.wait_for("result")["code"] in (0, 719)  # a race with the others' error, as for misaligned
    assert victim.end()["code"] == 719
    assert read(cores, culprit.pid).exceptions[0].name == "WARP_ASSERT"
    culprit.end()


def test_a_culprit_hears_of_its_error_later_when_it_writes_a_dump(mps: Machine, cores: Path) -> None:
    """375 ms instead of 11, as measured on an H200."""
    culprit = mps.client("faulter", "trap", MPSD_SIM_FAST="0", **environment(cores))
    assert culprit.wait_for("result")["ms"] >= 375
    culprit.end()


def test_without_the_variable_nothing_is_written(mps: Machine, cores: Path) -> None:
    asked = environment(cores) | {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0"}
    mps.run("faulter", "trap", **asked)
    assert os.listdir(cores) == []


def test_of_an_mmu_fault_nothing_is_written(mps: Machine, cores: Path) -> None:
    """What a real driver writes then was not measured."""
    victim = mps.client("counter", "--seconds", "8", **environment(cores))
    victim.wait_for("ready")
    mps.run("faulter", "oob_write", **environment(cores))
    assert victim.end()["code"] == 700
    assert os.listdir(cores) == []


def test_a_file_that_cannot_be_written_changes_nothing(mps: Machine, tmp_path: Path) -> None:
    culprit = mps.client("faulter", "trap", **environment(tmp_path / "absent"))
    assert culprit.wait_for("result")["code"] == 719
    culprit.end()
    server = mps.server()
    eventually(lambda: mps.ask(f"get_server_status {server}") == "ACTIVE\n")
