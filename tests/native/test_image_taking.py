"""Taking images on the simulator, beside a writer that changes blocks between any two calls of the imager."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs  # noqa: F401
from tests.native.sim_machine import ROOT, Machine
from tests.seeds import seeds

PROGRAM = Path(__file__).with_name("image_taking.py")

pytestmark = [
    pytest.mark.deadline(90),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


def run(machine: Machine, verb: str, seed: int = 1) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), verb, str(seed)]
    env = machine.library_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_hash_is_the_documented_one_and_sees_a_bit_and_an_order(machine: Machine) -> None:
    assert run(machine, "hash", 7) == {"right": True, "different": 3}


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_an_image_has_the_bytes_of_the_barrier_whenever_the_client_writes(machine: Machine, seed: int) -> None:
    found = run(machine, "hostile", seed)
    assert found["wrong"] == 0
    assert found["staged"] > 0
    assert found["writes"] > 100


def test_without_room_on_the_gpu_the_host_gets_what_changed_at_the_barrier(machine: Machine) -> None:
    found = run(machine, "no_room")
    assert (found["wrong"], found["staged"]) == (0, 0)
    assert found["direct"] > 0


def test_hashing_the_arena_after_the_copy_would_lose_writes(machine: Machine) -> None:
    """The naive order under the same writer: were no block wrong, the test above would prove nothing."""
    assert any(run(machine, "naive")["wrong"] > 0 for _ in range(5))  # on a busy machine the writer may not get its turn


def test_a_failure_waits_for_the_pieces_under_way(machine: Machine) -> None:
    """They use the store, which is closed next."""
    assert run(machine, "fail") == {"store": ["the disk is full", 8], "driver": ["the context is lost", 8], "saved": 7}


def test_a_client_that_writes_during_the_barrier_gets_no_image(machine: Machine) -> None:
    assert run(machine, "barrier") == {"refused": "1 blocks changed during the barrier, the first at 0x0"}


@pytest.mark.parametrize("block", [0, 4])
def test_a_client_that_writes_what_was_staged_unseen_gets_no_image(machine: Machine, block: int) -> None:
    assert "1 blocks changed during the barrier" in run(machine, "changing", block)["refused"]


def test_what_was_expected_to_change_and_did_not_is_not_staged(machine: Machine) -> None:
    assert run(machine, "early") == {"staged": 1, "wrong": 0}


def test_blocks_that_change_all_the_time_are_copied_once(machine: Machine) -> None:
    """A kernel of the imager takes its turn with the client's; what was staged needs none on its way to the host."""
    found = run(machine, "restless")
    assert found == {"copied": True, "kernels": 0, "staged": 4, "direct": 0, "expected": 7, "right": True}


def test_blocks_that_are_freed_before_their_copy_are_not_expected(machine: Machine) -> None:
    """The progress ends at all that was to be copied."""
    found = run(machine, "freed")
    assert found["expected"] == found["saved"] == found["all"] - 1


def test_blocks_that_an_earlier_image_has_are_not_copied_again_unless_they_change(machine: Machine) -> None:
    found = run(machine, "shared")
    assert found == {"copied": True, "looks_at_all": 1, "saved": True, "right": True, "hashes": True}


def test_what_a_failed_gpu_gives_for_the_staged_copies_is_no_image(machine: Machine) -> None:
    assert "did not come to the host: has the GPU failed?" in run(machine, "lost")["refused"]
