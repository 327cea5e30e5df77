"""A directory of images, in memory: they sync every file, and on a busy disk that takes up to 0.1 s."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.images.store import Images
from tests.descriptors import descriptors

MEMORY, MEMORY_BYTES = Path("/dev/shm"), 1 << 30


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a directory for one test, on disk where memory has no room or is mounted noexec."""
    made = Path(tempfile.mkdtemp(prefix="mpsd-", dir=MEMORY if has_room() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def has_room() -> bool:
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "images"


@pytest.fixture
def images(path: Path) -> Iterator[Images]:
    before = descriptors()
    with Images.open(path) as made:
        yield made
    assert descriptors() <= before, "what earlier tests left may be closed meanwhile"
