"""What another user, or whoever made an image or its layout, cannot do to the user of a directory."""

import os
from pathlib import Path

import pytest

from mpsd.errors import BadRequest, UnusablePath
from mpsd.images.__main__ import main
from mpsd.images.export import export
from mpsd.images.rules.manifest import Manifest, decode, encode
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, facts, take

SOMEBODY = 64321


@pytest.mark.root
@pytest.mark.parametrize("name", ["packs", "complete", "key", "key-new", "manifest-new"])
def test_a_file_of_another_user_in_the_directory_is_not_used(path: Path, name: str) -> None:
    """Others could write there once: they would know the key, and could replace the images."""
    path.mkdir(parents=True)
    path.chmod(0o777)
    made = path / name
    made.mkdir() if name in ("packs", "complete") else made.write_bytes(bytes(32))
    os.chown(made, SOMEBODY, SOMEBODY)
    with pytest.raises(UnusablePath, match=f"{name} is of uid {SOMEBODY}"):
        Images.open(path)


@pytest.mark.root
def test_nothing_is_made_in_another_users_directory(tmp_path: Path) -> None:
    """As when root's home is taken from a user's environment."""
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    with pytest.raises(UnusablePath, match="belongs to another user"):
        Images.open(tmp_path / ".local" / "state" / "images")
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_closed_to_others(path: Path) -> None:
    """They could read the names of images, and lock the directory itself."""
    path.mkdir(mode=0o755, parents=True)
    with Images.open(path):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("instant", [float("nan"), float("inf"), -1.0, 1e18])
def test_a_time_that_is_none_damages_one_image_and_not_the_list(images: Images, instant: float) -> None:
    take(images, "first", FIRST)
    hash_of, manifest = images.directory.hash_of, images.find("first")
    with pytest.raises(ImageDamaged, match="time"):
        decode(encode(Manifest(manifest.name, "", instant, 0.0, manifest.digest, manifest.arenas), hash_of), hash_of)


def test_a_name_writes_nothing_else_on_the_terminal(images: Images, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with images.begin("first", group="\x1b]0;title\x07") as new:
        new.finish(1.0, [facts(name="\x1b[2Jmodel")])
    for words in (["list"], ["show", "first"], ["export", "first", str(path / "file"), "--arena", "\x1b[2J"]):
        main([words[0], "--directory", str(path), *words[1:]])
        told = capsys.readouterr()
        assert "\x1b" not in told.out + told.err


def test_a_layout_does_not_make_a_file_larger_than_memory(images: Images, tmp_path: Path) -> None:
    """A tensor with strides of 0 repeats its elements: one of 8 TiB had its bytes made in memory, and the disk filled."""
    text = b'{"format":"mpsd-tensors-1","tensors":{"t":{"offset":0,"dtype":"uint8","shape":[8796093022208],"strides":[0]}}}'
    with images.begin("first") as new:
        new.add("model", 0, bytes(2 << 20))
        new.finish(1.0, [facts(0, layout=text)])
    with images.reader("first") as image, pytest.raises(BadRequest, match="the whole arena"):
        export(image, 0, tmp_path / "file", is_raw=False)
    assert not (tmp_path / "file.part").exists()
