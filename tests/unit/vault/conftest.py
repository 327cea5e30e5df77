"""Each test has a vault of its own, and leaves no keeper behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vault.machine import PROGRAM, Holder, Machine, a_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests with a `machine` if the keeper is not built."""
    if not PROGRAM.exists():
        for item in items:
            if "machine" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=f"{PROGRAM} is not built: make build"))


@pytest.fixture
def machine(short_dir: Path) -> Iterator[Machine]:
    made = Machine(short_dir)
    yield made
    made.end_keepers()


@pytest.fixture
def writer() -> Iterator[Holder]:
    with a_process() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Holder]:
    with a_process() as made:
        yield made
