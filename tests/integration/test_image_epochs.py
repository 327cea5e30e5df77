"""Two ranks on two simulated GPUs, killed at random moments: they end with the weights of an undisturbed run."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpsd.images.store import Images
from tests.integration.machine import Machine, open_machine

PROGRAM = Path(__file__).parents[2] / "clients/python/examples/two_ranks.py"
STEPS, EVERY = 80, 3
STRIKES = ["rank"] * 8 + ["both"] * 6 + ["imager"] * 4 + ["hung"] * 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deadline(400),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


@pytest.fixture(scope="module")
def two_gpus(programs: None) -> Iterator[Machine]:
    with open_machine() as machine:
        machine.start(MPSD_SIM_GPUS="2")
        yield machine


def train(machine: Machine, group: str, directory: Path) -> "subprocess.Popen[str]":
    path = f"{Path(sys.executable).parent}:{machine.variables.get('PATH', os.defpath)}"
    words = ["--steps", str(STEPS), "--every", str(EVERY), "--hung-after", "12"]
    words = [sys.executable, str(PROGRAM), group, str(directory), *words]
    return subprocess.Popen(words, env=machine.variables | {"PATH": path}, stdout=subprocess.PIPE, text=True)


def strike(kind: str, pid: int) -> bool:
    """End a rank, its imager, or both; or let the rank hang.  Return False if it has no such process now."""
    imagers = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    if kind in ("imager", "both") and not imagers:
        return False
    for each in imagers if kind in ("imager", "both") else []:
        os.kill(each, signal.SIGKILL)
    if kind != "imager":
        os.kill(pid, signal.SIGSTOP if kind == "hung" else signal.SIGKILL)
    return True


def test_ranks_that_are_killed_end_with_the_same_weights(two_gpus: Machine, tmp_path: Path) -> None:
    with train(two_gpus, "undisturbed", tmp_path) as launcher:
        assert launcher.stdout
        calm = [json.loads(line) for line in launcher.stdout]
    assert launcher.returncode == 0
    [weights] = {each["weights"] for each in calm if "weights" in each}
    chosen = random.Random(19)
    strikes = chosen.sample(STRIKES, len(STRIKES))
    said: list[dict[str, Any]] = []
    pause = 5
    with train(two_gpus, "killed", tmp_path) as launcher:
        assert launcher.stdout
        for line in launcher.stdout:
            said.append(json.loads(line))
            pause -= "step" in said[-1]
            if pause < 0 and strikes and "pid" in said[-1]:
                with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
                    if not strike(strikes[-1], said[-1]["pid"]):
                        continue
                    strikes.pop()
                    pause = chosen.randrange(-1, 16)  # -1: as soon as the next rank starts, which then restores
    assert launcher.returncode == 0
    assert [each["weights"] for each in said if "weights" in each][-2:] == [weights] * 2
    starts = [each for each in said if "life" in each]
    lives, epochs = [each["life"] for each in starts], [each["epoch"] for each in starts]
    assert not strikes
    assert lives == sorted(set(lives))
    assert len(lives) > len(STRIKES) // 3, "the ranks were hardly ever killed"
    assert epochs == sorted(epochs), "what was complete stays complete"
    assert epochs[-1] > 0, "no start was from an image"
    with Images.open(tmp_path) as images:
        assert not images.listing().damaged
