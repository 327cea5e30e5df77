"""A house for each test, without a keeper left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vault.house import PROGRAM, Holder, House, a_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests with a `house` if the keeper is not built."""
    if not PROGRAM.exists():
        for item in items:
            if "house" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=f"{PROGRAM} is not built: make build"))


@pytest.fixture
def house(short_dir: Path) -> Iterator[House]:
    made = House(short_dir)
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
