"""Two ranks on two simulated GPUs, killed at random moments: they end with the weights of an undisturbed run."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.images.store import Images
from tests.integration.machine import Machine, open_machine
from tests.two_ranks import STRIKES, Training, train

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


def test_ranks_that_are_killed_end_with_the_same_weights(two_gpus: Machine, tmp_path: Path) -> None:
    def run(group: str, strikes: int = 0) -> Training:
        return train(Path(sys.executable), ("0", "1"), group, tmp_path, two_gpus.variables, strikes)

    undisturbed, killed = run("undisturbed"), run("killed", len(STRIKES))
    assert (undisturbed.status, killed.status) == (0, 0)
    assert killed.is_as(undisturbed)
    lives, epochs = killed.values("life"), killed.values("epoch")
    assert sorted(each.kind for each in killed.strikes) == sorted(STRIKES)
    assert lives == sorted(set(lives))
    assert len(lives) > len(STRIKES) // 3, "the ranks were hardly ever killed"
    assert epochs == sorted(epochs), "what was complete stays complete"
    assert epochs[-1] > 0, "no start was from an image"
    with Images.open(tmp_path) as images:
        assert not images.listing().damaged
