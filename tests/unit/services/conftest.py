"""A machine with one arena for each test."""

from pathlib import Path

import pytest

from tests.unit.services.fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path)
    made.vault.create()
    return made
