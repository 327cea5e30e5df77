"""The worked example of docs/protocol.md, with a real daemon."""

import subprocess
import sys

import pytest

from tests.integration.machine import ROOT, Machine

pytestmark = pytest.mark.root


def test_the_example_with_descriptors_runs_as_it_is_printed(machine: Machine) -> None:
    machine.start()
    code = (ROOT / "docs/protocol.md").read_text().partition("```python\n")[2].partition("```")[0]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=machine.variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[[0, 2097152, 1]] with 1 descriptor\n", "")
