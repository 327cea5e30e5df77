"""A room with one arena for each test."""

from pathlib import Path

import pytest

from tests.unit.services.room import Room


@pytest.fixture
def room(tmp_path: Path) -> Room:
    made = Room(tmp_path)
    made.vault.create()
    return made
