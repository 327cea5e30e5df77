"""A client of one test's own, and a place for what is told of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.uvm.house import FakeClient, Told, a_client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FakeClient]:
    with a_client(tmp_path) as client:
        yield client


@pytest.fixture
def told() -> Told:
    return Told()
