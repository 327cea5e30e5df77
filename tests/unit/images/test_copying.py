"""An image is copied to another directory, with another key; and images in host memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.errors import BadRequest, NoRoom
from mpsd.images.copying import copy
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, block, contents_of, expected, facts, flip, stored_blocks, take


@pytest.fixture
def memory() -> Iterator[Images]:
    """Return a directory in host memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, Images.open(Path(directory, "images")) as made:
        yield made


def test_images_in_host_memory(memory: Images) -> None:
    take(memory, "first", FIRST)
    take(memory, "second", {0: 10, 1: 99})
    assert contents_of(memory, "first") == expected(FIRST)
    memory.remove("first")
    assert memory.collect() == 2 * BLOCK_BYTES
    assert stored_blocks(memory) == 2
    assert contents_of(memory, "second") == expected({0: 10, 1: 99})


def test_a_copy_has_everything_of_the_image(memory: Images, images: Images) -> None:
    with memory.begin("first", "llm") as new:
        for name in ("weights", "kv"):
            for place in range(20):
                new.add(name, place * BLOCK_BYTES, block(place % 7 + len(name)))
        made = new.finish(5.0, [facts(*range(20), name=name, layout=b"x", state=b"y") for name in ("weights", "kv")])
    told: list[int] = []
    with memory.reader("first") as image:
        copied = copy(image, images, "first", told.append)
    assert (copied.group, copied.instant, sum(told)) == ("llm", 5.0, 40 * BLOCK_BYTES)
    assert [each.facts for each in copied.arenas] == [each.facts for each in made.arenas]
    assert contents_of(images, "first") == contents_of(memory, "first")
    assert list(images.verify()) == []
    with memory.reader("first") as image, pytest.raises(BadRequest, match="already"):
        copy(image, images, "first")


def test_a_copy_shares_blocks(memory: Images, images: Images) -> None:
    take(memory, "first", FIRST)
    take(images, "other", FIRST)
    with memory.reader("first") as image:
        copy(image, images, "first")
    assert stored_blocks(images) == 3


def test_a_copy_that_fails_leaves_nothing(memory: Images, images: Images) -> None:
    take(memory, "first", {place: place for place in range(30)})
    images.set_limits(Limits(quota_bytes=10 * BLOCK_BYTES))
    with memory.reader("first") as image, pytest.raises(NoRoom):
        copy(image, images, "first")
    images.set_limits(Limits())
    flip(memory.directory.path / "packs/1", 12 * BLOCK_BYTES)
    with memory.reader("first") as image, pytest.raises(ImageDamaged):
        copy(image, images, "first")
    assert (images.directory.names(), stored_blocks(images)) == ([], 0)
