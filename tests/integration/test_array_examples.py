"""The examples for CuPy and JAX, killed between two steps, go on to the result of an undisturbed run.

On the simulator: NumPy stands for CuPy (arrays_on_a_cpu), and JAX, where it is installed, computes on the CPU.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.machine import ROOT, Machine, open_machine

EXAMPLES = ROOT / "clients/python/examples"
ON_A_CPU = Path(__file__).with_name("arrays_on_a_cpu")
SECONDS = 60.0


@pytest.fixture(name="machine", scope="module")
def machine_of_arenas(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.start()
        yield made


def start(machine: Machine, words: list[str], *options: str) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(ON_A_CPU), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *words, *options],
        env=machine.variables | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    )


def run(machine: Machine, words: list[str], *options: str) -> list[str]:
    with start(machine, words, *options) as process:
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        return said.splitlines()


def is_continued(machine: Machine, words: list[str], steps: int) -> None:
    killed, whole = ("--arena", f"killed-{Path(words[-1]).stem}"), ("--arena", f"whole-{Path(words[-1]).stem}")
    assert run(machine, words, *killed, "--steps", str(steps))[0] == "generation 1 begins after step 0"
    with start(machine, words, *killed, "--steps", "100000000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"generation 2 begins after step {steps}\n"
        process.kill()
    said = run(machine, words, *killed, "--steps", "0")[0]
    assert said.startswith("generation 3 begins after step ")
    reached = int(said.rpartition(" ")[2])
    assert reached >= steps
    to_the_end = ("--steps", str(reached + steps))
    assert run(machine, words, *killed, *to_the_end)[1] == run(machine, words, *whole, *to_the_end)[1]


@pytest.mark.slow
def test_cupys_arrays_outlive_their_process(machine: Machine) -> None:
    pytest.importorskip("numpy")
    is_continued(machine, [str(EXAMPLES / "with_cupy.py")], 20)


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX, 90 MB, is not installed: pip install jax")
def test_jaxs_state_outlives_its_process(machine: Machine) -> None:
    is_continued(machine, [str(ON_A_CPU / "jax_program.py"), str(EXAMPLES / "with_jax.py")], 20)
