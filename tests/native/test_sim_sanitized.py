"""All tests of the simulator again, with its programs under sanitizers."""

import os
import subprocess
import sys

import pytest

from tests.native.sim_machine import ROOT


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_the_simulator_under_sanitizers() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", *sorted(map(str, (ROOT / "tests/native").glob("test_sim_*.py")))]
    environment = os.environ | {"MPSD_SIM_SAN": "address,undefined"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
