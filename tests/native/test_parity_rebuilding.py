"""A lost arena is rebuilt on the simulated GPU while all threads read at the same time."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs  # noqa: F401
from tests.native.sim_machine import ROOT, Machine

PROGRAM = Path(__file__).with_name("parity_rebuilding.py")

pytestmark = [
    pytest.mark.deadline(90),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


def test_two_arenas_on_one_gpu_do_not_wait_for_each_other(machine: Machine, tmp_path: Path) -> None:
    """After the loss of a GPU its arena is rebuilt beside another one.

    Each thread holds a buffer of one while it asks for one of the other."""
    command, env = [sys.executable, str(PROGRAM), str(tmp_path)], machine.library_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=80, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "8"), done.stderr
