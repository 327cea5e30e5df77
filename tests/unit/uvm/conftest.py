"""A client for each test, and a place for the observations about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.uvm import simulator
from tests.unit.uvm.fake_clients import FakeClient, Told, a_client


@pytest.fixture(autouse=True)
def without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients here are made up: no server takes the files of the dead away."""
    monkeypatch.setattr(simulator, "_SERVER_SECONDS", 0.0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FakeClient]:
    with a_client(tmp_path) as client:
        yield client


@pytest.fixture
def told() -> Told:
    return Told()
