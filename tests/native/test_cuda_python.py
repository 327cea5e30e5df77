"""cuda-python on the simulator: NVRTC, a stream of low priority, a launch by cuda.core, memory shared by a descriptor."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import CLIENTS, Machine

PROGRAM = CLIENTS.parent / "cuda_python.py"

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("cuda"), reason="needs cuda-python and NVRTC (pip install '.[dev]')"
)


@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "under MPS"])
def test_a_program_on_cuda_python_runs(machine: Machine, with_daemon: bool) -> None:
    if with_daemon:
        machine.start()
    done = subprocess.run(
        [sys.executable, PROGRAM], env=machine.library_environment(), capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "low priority": True,
        "parameters": 3,
        "time passed": True,
        "wrong words": 0,
        "wrong on the default stream": 0,
        "importer": 0,
        "its word": 0xAB,
    }
