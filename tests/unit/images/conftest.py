"""A directory of images."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.images.store import Images
from tests.descriptors import descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "images"


@pytest.fixture
def images(path: Path) -> Iterator[Images]:
    before = descriptors()
    with Images.open(path) as made:
        yield made
    assert descriptors() <= before, "what earlier tests left may be closed meanwhile"
