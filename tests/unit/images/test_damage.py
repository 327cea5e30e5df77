"""Flipped bits, lost files and failed writes."""

import mmap
import os
from pathlib import Path

import pytest

from mpsd.errors import MpsdError
from mpsd.images.blocks import read_block, sums_of
from mpsd.images.pack import Pack
from mpsd.images.reader import Damage
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, block, contents_of, expected, facts, flip, stored_blocks, take


def test_a_flipped_bit_is_found_in_every_image_that_has_the_block(images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    take(images, "second", {5: 11, 6: 50})
    assert list(images.verify()) == []
    flip(path / "packs/1", BLOCK_BYTES + 12345)
    why = "the bytes in pack 1, slot 1 are not those that were written"
    found = [Damage("first", "model", BLOCK_BYTES, why), Damage("second", "model", 5 * BLOCK_BYTES, why)]
    read = []
    assert list(images.verify(told=read.append)) == found
    assert sum(read) == 4 * BLOCK_BYTES  # each block once
    assert list(images.verify(["second"])) == found[1:]
    with images.reader("first") as image, pytest.raises(ImageDamaged, match="image first, arena model, offset 0x200000"):
        image.read_into(0, BLOCK_BYTES, bytearray(BLOCK_BYTES))


def test_a_damaged_block_is_stored_again_by_the_next_image(images: Images, path: Path) -> None:
    """Once `verify` has found it: to look for it at every image would mean to read all of them."""
    take(images, "first", FIRST)
    flip(path / "packs/1", BLOCK_BYTES + 12345)
    take(images, "second", FIRST)
    assert [each.image for each in images.verify()] == ["first", "second"]
    with images.begin("third") as new:
        new.add("model", 0, block(10))
        new.add("model", BLOCK_BYTES, block(11))
        new.add("model", 7 * BLOCK_BYTES, block(12))
        new.finish(3.0, [facts(0, 1, 7)])
    assert contents_of(images, "third") == expected(FIRST)
    assert stored_blocks(images) == 4
    assert [each.image for each in images.verify()] == ["first", "second"]


def test_a_block_that_was_damaged_since_an_image_was_begun_is_not_shared(images: Images, path: Path) -> None:
    with images.begin("second") as second:
        second.add("model", 0, block(10))
        place = take(images, "first", {0: 10}).arenas[0].place(0)
        flip(path / f"packs/{place.pack}", place.slot * BLOCK_BYTES)
        assert [each.image for each in images.verify()] == ["first"]
        second.finish(1.0, [facts(0)])
    assert contents_of(images, "second") == expected({0: 10})


def test_a_pack_that_is_cut_off_or_missing_is_found(images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    os.truncate(path / "packs/1", 2 * BLOCK_BYTES + 4096)
    assert [(each.image, each.offset) for each in images.verify()] == [("first", 7 * BLOCK_BYTES)]
    (path / "packs/1").unlink()
    assert [each.offset // BLOCK_BYTES for each in images.verify()] == [0, 1, 7]


def test_a_damaged_manifest_is_found_and_the_others_are_listed(images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    take(images, "second", {0: 10})
    flip(path / "complete/first", 40)
    listing = images.listing()
    assert [each.name for each in listing.images] == ["second"]
    assert listing.damaged.keys() == {"first"}
    assert [(each.image, each.arena) for each in images.verify()] == [("first", "")]
    with pytest.raises(ImageDamaged):
        images.find("first")
    take(images, "third", FIRST)
    assert contents_of(images, "third") == expected(FIRST)


def test_a_manifest_under_another_name_is_refused(images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    os.link(path / "complete/first", path / "complete/other")
    with pytest.raises(ImageDamaged, match="that of image first"):
        images.find("other")


def test_a_failed_write_leaves_nothing(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    take(images, "first", FIRST)
    with images.begin("second") as new:
        monkeypatch.setattr("os.pwrite", fail)
        with pytest.raises(OSError, match="Input/output"):
            new.add("model", 0, block(60))
        monkeypatch.undo()
        with pytest.raises(MpsdError, match="could not be written"):
            new.finish(1.0, [facts(0)])
    assert images.directory.names() == ["first"]
    assert stored_blocks(images) == 3


def test_blocks_pass_the_page_cache(images: Images) -> None:
    """Where the file system of the tests allows it, as ext4 and XFS do."""
    take(images, "first", FIRST)
    pack = Pack.open(images.directory.packs, 1)
    with mmap.mmap(-1, BLOCK_BYTES) as aligned:
        is_direct = pack._is_direct()
        sums = read_block(pack.descriptor, 0, aligned, images.directory.hash_of.block_key)
        expected_sums = sums_of(aligned, images.directory.hash_of.block_key)
        still = pack._is_direct()
        pack.close()
    assert sums == expected_sums
    if not is_direct:
        pytest.skip("this file system has no O_DIRECT")
    assert still


def test_memory_that_is_not_aligned_is_served(images: Images) -> None:
    take(images, "first", FIRST)
    memory = memoryview(bytearray(BLOCK_BYTES + 1))[1:]
    with images.reader("first") as image:
        image.read_into(0, 0, memory)
    assert memory == block(FIRST[0])
    with images.begin("second") as new:
        new.add("model", 0, memory)
        new.add("model", BLOCK_BYTES, memoryview(bytearray(b"1" + block(99)))[1:])
        new.finish(2.0, [facts(0, 1)])
    assert contents_of(images, "second") == expected({0: FIRST[0], 1: 99})
