"""A machine with one arena for each test."""

import os
from pathlib import Path

import pytest

from tests.unit.services.fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path)
    made.vault.create()
    return made


@pytest.fixture
def own_descriptors(machine, monkeypatch):
    """The receiver of each descriptor closes it."""
    found = machine.vault.state_descriptor

    async def state_descriptor(arena_id: int) -> int:
        descriptor = await found(arena_id)
        return os.dup(descriptor) if descriptor >= 0 else -1

    monkeypatch.setattr(machine.vault, "state_descriptor", state_descriptor)
    yield
    for descriptor in machine.vault.descriptors.values():
        os.close(descriptor)
