"""The files by which programs find mpsd are made again when they are removed, and the loss is logged."""

import shutil
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from mpsd.app.public_paths import SECONDS, PublicPaths
from mpsd.errors import UnusablePath
from mpsd.host.pipe_directory import PipeDirectory


class Place:
    """A directory with doors, some of which cannot be made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.doors = [directory / "control", directory / "ui"]
        self.refusal = ""
        self.is_over = False
        self.pipe = PipeDirectory(directory)
        self.pipe.open()
        places = {door.name: door.touch for door in self.doors}
        self.presence = PublicPaths(self.pipe, self.restore, places, lambda: self.is_over)

    def restore(self) -> None:
        if self.refusal:
            raise UnusablePath(self.refusal)
        self.pipe.open()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "pipe")
    for door in place.doors:
        door.touch()
    return place


def looked(place: Place) -> list[str]:
    with structlog.testing.capture_logs() as logs:
        place.presence.look()
    return [each["event"] for each in logs]


def test_what_is_there_is_left_alone(place: Place):
    inodes = [door.stat().st_ino for door in place.doors]
    assert looked(place) == []
    assert [door.stat().st_ino for door in place.doors] == inodes


def test_what_was_removed_is_made_anew(place: Place):
    place.doors[0].unlink()
    kept = place.doors[1].stat().st_ino
    assert looked(place) == ["pipe_directory.restored"]
    assert (place.doors[0].exists(), place.doors[1].stat().st_ino) == (True, kept)
    shutil.rmtree(place.directory)
    assert looked(place) == ["pipe_directory.restored"]
    assert all(door.exists() for door in place.doors)


def test_another_directory_in_its_place_is_filled(place: Place, tmp_path: Path):
    """All that programs find mpsd by is in the one before."""
    place.directory.rename(tmp_path / "before")
    shutil.copytree(tmp_path / "before", place.directory)
    kept = {door.stat().st_ino for door in place.doors}
    for door in place.doors:
        door.unlink()
    assert looked(place) == ["pipe_directory.restored"]
    assert all(door.exists() for door in place.doors)
    assert kept.isdisjoint({(tmp_path / "before" / door.name).stat().st_ino for door in place.doors})
    assert looked(place) == []


def test_a_directory_that_others_may_write_to_is_tightened(place: Place):
    place.directory.chmod(0o777)
    inodes = [door.stat().st_ino for door in place.doors]
    assert looked(place) == ["directory.tightened"]
    assert place.directory.stat().st_mode & 0o777 == 0o711
    assert [door.stat().st_ino for door in place.doors] == inodes


def test_what_cannot_be_made_is_said_once_and_tried_again(place: Place):
    shutil.rmtree(place.directory)
    place.refusal = "no space left"
    assert [looked(place), looked(place)] == [["pipe_directory.missing"], []]
    place.refusal = ""
    assert looked(place) == ["pipe_directory.restored"]


def test_what_cannot_be_there_yet_is_not_said(tmp_path: Path):
    """A link leads to a domain: there may be none yet."""
    door = tmp_path / "control"
    pipe = PipeDirectory(tmp_path)
    pipe.open()
    presence = PublicPaths(pipe, lambda: None, {door.name: lambda: None}, lambda: False)
    with structlog.testing.capture_logs() as logs:
        presence.look()
    assert (logs, door.exists()) == ([], False)


async def test_nothing_is_made_once_mpsd_quits(place: Place, autojump_clock: MockClock):
    with trio.fail_after(10 * SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.presence.run)
            await trio.sleep(1.5 * SECONDS)
            place.is_over = True
            place.doors[0].unlink()
    assert not place.doors[0].exists()
