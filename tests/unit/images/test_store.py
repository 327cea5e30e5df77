"""Images on a real file system: complete or absent, each block once, nothing lost, damage found."""

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from mpsd.errors import BadRequest, NoRoom, UnusablePath
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged, NoSuchImage
from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, block, contents_of, expected, facts, flip, stored_blocks, take


def test_an_image_is_read_as_it_was_written(images: Images) -> None:
    made = take(images, "first", FIRST, instant=5.0)
    assert contents_of(images, "first") == expected(FIRST)
    assert images.find("first") == made
    assert (made.series, made.content_bytes, made.instant) == ("model", 3 * BLOCK_BYTES, 5.0)


def test_only_the_user_can_read(images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    modes = {str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*")}
    assert modes == {
        "complete": 0o700, "removed": 0o700, "packs": 0o700,
        "key": 0o600, "lock": 0o600, "complete/first": 0o600, "packs/1": 0o600,
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UnusablePath):
        Images.open(shared / "images")


def test_a_block_is_stored_once(images: Images) -> None:
    take(images, "first", {0: 10, 1: 10, 7: 12})
    take(images, "second", {0: 12, 1: 13}, arena="other")
    assert stored_blocks(images) == 3
    assert contents_of(images, "second") == expected({0: 12, 1: 13})


def test_images_that_were_written_at_one_time_store_a_block_once(images: Images) -> None:
    with images.begin("first") as first, images.begin("second") as second:
        for each, other in ((first, 20), (second, 30)):
            each.add("model", 0, block(10))
            each.add("model", BLOCK_BYTES, block(other))
        second.finish(1.0, [facts(0, 1)])
        first.finish(1.0, [facts(0, 1)])
    assert contents_of(images, "first") == expected({0: 10, 1: 20})
    assert contents_of(images, "second") == expected({0: 10, 1: 30})
    assert stored_blocks(images) == 3


def test_memory_at_any_address_can_be_stored_and_read(images: Images) -> None:
    """O_DIRECT asks for aligned memory."""
    data = bytearray(b"x") + block(10)
    with images.begin("first") as new:
        new.add("model", 0, memoryview(data)[1:])
        new.finish(1.0, [facts(0)])
    into = bytearray(BLOCK_BYTES + 1)
    with images.reader("first") as image:
        image.read_into(0, 0, memoryview(into)[1:])
    assert into[1:] == block(10)


def test_a_block_is_replaced_until_the_image_is_finished(images: Images) -> None:
    with images.begin("first") as new:
        for content in (10, 11, 12):
            new.add("model", 0, block(content))
        new.add("model", BLOCK_BYTES, block(10))
        assert new.new_bytes == 2 * BLOCK_BYTES
        new.finish(1.0, [facts(0, 1)])
    assert contents_of(images, "first") == expected({0: 12, 1: 10})
    assert stored_blocks(images) == 2


def test_the_space_of_a_replaced_block_is_given_back(images: Images) -> None:
    with images.begin("first") as new:
        for place in range(3):
            new.add("model", place * BLOCK_BYTES, block(place))
        new.add("model", 0, block(2))
        new.finish(1.0, [facts(0, 1, 2)])
    assert stored_blocks(images) == 2
    assert contents_of(images, "first") == expected({0: 2, 1: 1, 2: 2})


def test_threads_add_blocks_at_the_same_time(images: Images) -> None:
    contents = {place: place % 20 for place in range(60)}
    with images.begin("first") as new:

        def add(places: range) -> None:
            for place in places:
                new.add("model", place * BLOCK_BYTES, block(contents[place] + 100))
                new.add("model", place * BLOCK_BYTES, block(contents[place]))

        threads = [threading.Thread(target=add, args=(range(start, 60, 6),)) for start in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        new.finish(1.0, [facts(*contents)])
    assert contents_of(images, "first") == expected(contents)
    assert stored_blocks(images) == 20


def test_the_arenas_may_be_known_last(images: Images) -> None:
    """A writer may drop memory while it is copied."""
    with images.begin("first") as new:
        for place in range(4):
            new.add("model", place * BLOCK_BYTES, block(place))
        new.finish(1.0, [facts(1, 2, layout=b"the last one")])
    assert contents_of(images, "first") == expected({1: 1, 2: 2})
    assert images.find("first").arenas[0].facts.layout == b"the last one"
    assert stored_blocks(images) == 2


def test_several_arenas_of_one_instant(images: Images) -> None:
    with images.begin("first", group="llm") as new:
        for name in ("weights", "kv"):
            new.add(name, 0, block(len(name)))
        made = new.finish(1.0, [facts(0, name="weights"), facts(0, name="kv")])
    assert made.series == "llm"
    into = bytearray(BLOCK_BYTES)
    with images.reader("first") as image:
        for name in ("weights", "kv"):
            image.read_into(image.arena(name), 0, into)
            assert into == block(len(name))
        with pytest.raises(BadRequest):
            image.arena("another")


# -- what is refused -------------------------------------------------------------------------------------------------------


def test_an_image_that_lacks_a_block_is_not_finished(images: Images) -> None:
    with images.begin("first") as new:
        new.add("model", 0, block(1))
        with pytest.raises(BadRequest, match="0x600000 was not added"):
            new.finish(1.0, [facts(0, 3)])
    assert (images.directory.names(), stored_blocks(images)) == ([], 0)


@pytest.mark.parametrize("name", ["", ".", "..", "../key", ".hidden", "a/b", "x" * 129, "a\0"])
def test_a_name_that_is_no_files_name_is_refused(images: Images, name: str) -> None:
    for use in (lambda: images.begin(name), lambda: images.find(name), lambda: images.remove(name)):
        with pytest.raises(BadRequest, match="image name"):
            use()


def test_a_name_is_used_once(images: Images) -> None:
    with images.begin("first") as late:
        late.add("model", 0, block(2))
        take(images, "first", FIRST)
        with pytest.raises(BadRequest, match="already"):
            late.finish(1.0, [facts(0)])
    with pytest.raises(BadRequest, match="already"):
        images.begin("first")
    assert contents_of(images, "first") == expected(FIRST)
    assert stored_blocks(images) == 3


def test_an_image_that_does_not_exist(images: Images) -> None:
    for use in (images.find, images.reader, images.remove, lambda name: list(images.verify([name]))):
        with pytest.raises(NoSuchImage):
            use("first")


def test_the_quota_is_of_disk_space(path: Path, images: Images) -> None:
    take(images, "first", FIRST)
    images.set_limits(Limits(quota_bytes=5 * BLOCK_BYTES - 1))
    with Images.open(path) as bounded:
        with bounded.begin("second") as new:
            new.add("model", 0, block(10))  # which the first one has
            new.add("model", BLOCK_BYTES, block(20))
            with pytest.raises(NoRoom, match="quota"):
                new.add("model", 2 * BLOCK_BYTES, block(21))
            with pytest.raises(NoRoom, match="quota"):
                new.finish(1.0, [facts(0, 1, 2)])
        assert stored_blocks(images) == 3
        take(bounded, "second", {0: 20})
    assert contents_of(images, "first") == expected(FIRST)


def test_manifests_count_for_the_quota(images: Images) -> None:
    """Images that share all their blocks filled the disk by their manifests: layouts, states, and the places of blocks."""
    taken = facts(0, layout=bytes(BLOCK_BYTES // 2))
    images.set_limits(Limits(quota_bytes=3 * BLOCK_BYTES))

    def take_as(name: str) -> None:
        with images.begin(name) as new:
            new.add("model", 0, block(1))
            new.finish(1.0, [taken])

    for name in ("first", "second", "third"):
        take_as(name)
    with pytest.raises(NoRoom, match=r"quota for images has no room for the image's manifest of \d+ bytes"):
        take_as("fourth")
    images.remove("first")
    with pytest.raises(NoRoom, match="quota"):
        take_as("fourth")
    images.collect()
    take_as("fourth")
    assert images.directory.names() == ["fourth", "second", "third"]
    assert images.directory.stored_bytes() <= 3 * BLOCK_BYTES


def test_without_its_key_no_image_can_be_checked(path: Path, images: Images) -> None:
    take(images, "first", FIRST)
    key = path / "key"
    saved = key.read_bytes()
    key.unlink()
    with pytest.raises(UnusablePath, match="key is missing"):
        Images.open(path)
    key.write_bytes(saved[:31])
    with pytest.raises(UnusablePath, match="31 bytes"):
        Images.open(path)


# -- removing --------------------------------------------------------------------------------------------------------------


def test_removing_frees_the_blocks_that_no_other_image_has(images: Images) -> None:
    take(images, "first", FIRST)
    take(images, "second", {0: 10, 1: 21})
    images.remove("first")
    assert images.collect() == 2 * BLOCK_BYTES
    assert stored_blocks(images) == 2
    assert contents_of(images, "second") == expected({0: 10, 1: 21})
    images.remove("second")
    assert images.collect() == 2 * BLOCK_BYTES
    assert os.listdir(images.directory.packs) == os.listdir(images.directory.removed) == []


def test_on_nfs_what_is_removed_is_freed_too(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a file has to be open for writing to be locked alone, and for reading to be locked with others: flock(2)."""
    flock = fcntl.flock

    def nfs_flock(descriptor: int, how: int) -> None:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if mode == (os.O_RDONLY if how & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    for name, content in (("first", 10), ("second", 20)):
        take(images, name, {0: content})
    with images.reader("second"):
        images.remove("first")
        images.remove("second")
        assert images.collect() == BLOCK_BYTES
    assert images.collect() == BLOCK_BYTES


def test_blocks_stay_while_a_reader_uses_them(images: Images) -> None:
    take(images, "first", FIRST)
    into = bytearray(BLOCK_BYTES)
    with images.reader("first") as image:
        images.remove("first")
        assert images.collect() == 0
        image.read_into(0, BLOCK_BYTES, into)
        assert into == block(11)
    assert images.collect() == 3 * BLOCK_BYTES


def test_blocks_stay_while_a_writer_may_share_them(images: Images) -> None:
    take(images, "first", FIRST)
    with images.begin("second") as new:
        new.add("model", 0, block(30))
        images.remove("first")
        assert images.collect() == 0
        new.add("model", BLOCK_BYTES, block(12))
        new.finish(1.0, [facts(0, 1)])
    assert images.collect() == 2 * BLOCK_BYTES
    assert contents_of(images, "second") == expected({0: 30, 1: 12})


def test_a_damaged_manifest_is_no_reason_to_take_an_older_image(images: Images, path: Path) -> None:
    """It may be of the newest one, which nobody would miss else: also where no other is left."""
    for number, name in enumerate(("first", "second")):
        take(images, name, {0: number}, instant=number)
    flip(path / "complete/second", 50)
    for left in (["first", "second"], ["second"]):
        assert images.directory.names() == left
        with pytest.raises(ImageDamaged, match=r"image second: .*: remove it to go on with the one before"):
            images.newest("model")
        if "first" in left:
            assert images.newest("model", skips_damaged=True).name == "first"
            images.remove("first")
    images.remove("second")
    with pytest.raises(NoSuchImage):
        images.newest("model")


def test_a_damaged_manifest_stops_the_collection(images: Images, path: Path) -> None:
    """Nothing says which blocks are of that image."""
    take(images, "first", FIRST)
    take(images, "second", {0: 40})
    flip(path / "complete/first", 100)
    images.remove("second")
    with pytest.raises(ImageDamaged, match="image first"):
        images.collect()
    assert stored_blocks(images) == 4
    images.remove("first")
    assert images.collect() == 4 * BLOCK_BYTES


def test_tidying_removes_what_the_limits_do_not_allow(images: Images, path: Path) -> None:
    for number in range(4):
        take(images, f"image{number}", {0: number}, instant=number)
    images.tidy()
    assert len(images.directory.names()) == 4
    with Images.open(path) as others:
        others.set_limits(Limits(keep=2))
    images.tidy()
    assert images.directory.names() == ["image2", "image3"]
    assert stored_blocks(images) == 2
    images.set_limits(Limits(age_seconds=3600.0))
    images.tidy()
    assert images.directory.names() == ["image3"], "the newest one stays"


@pytest.mark.parametrize("text", [b"", b"{", b'{"keep": 0}', b'{"keep": "2"}', b'{"kept": 2}', b'{"\xff": 2}', b"[" * 5000])
def test_limits_that_cannot_be_read_are_not_taken_for_none(images: Images, path: Path, text: bytes) -> None:
    (path / "limits").write_bytes(text)
    with pytest.raises(UnusablePath, match="limits"):
        images.begin("first")
    images.set_limits(Limits(keep=2))
    assert images.directory.limits() == Limits(keep=2)
    assert os.listdir(images.directory.packs) == []


def test_the_names_of_all_packs_reach_the_disk_at_once(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait for the disk is a part of the pause of a move whose images are there."""
    synced: list[int] = []
    found = os.fsync
    with images.begin("several", files=4) as new:
        new.add("model", 0, block(1))
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or found(descriptor))
        new.finish(1.0, [facts(0)])
    assert synced.count(images.directory.packs) == 1
