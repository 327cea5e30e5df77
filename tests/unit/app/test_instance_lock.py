"""The lock of the state directory."""

from pathlib import Path

import pytest

from mpsd.app.instance_lock import LOCK, InstanceLock
from mpsd.errors import AlreadyRunning
from tests.descriptors import descriptors


def test_a_state_directory_that_another_mpsd_took_costs_no_descriptors(tmp_path: Path) -> None:
    """mpsd tries again every half second, and each attempt left one open."""
    state = tmp_path / "state"
    ours, other = (InstanceLock(tmp_path / "pipe", tmp_path / "log", state) for _ in range(2))
    ours.remake_state()
    (state / LOCK).unlink()
    other.remake_state()
    before = descriptors()
    for _ in range(3):
        with pytest.raises(AlreadyRunning):
            ours.remake_state()
    assert descriptors() == before
    (state / LOCK).unlink()
    ours.remake_state()
    assert descriptors() == before
    with pytest.raises(AlreadyRunning):
        other.remake_state()
