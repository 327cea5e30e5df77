"""What programs find mpsd by is made anew, once it was there, and that it was missing is said."""

import shutil
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from mpsd.errors import UnusablePath
from mpsd.runtime.presence import SECONDS, Presence


class Place:
    """A directory with doors, some of which cannot be made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.doors = [directory / "control", directory / "ui"]
        self.refusal = ""
        self.is_over = False
        self.presence = Presence(self.restore, {door: door.touch for door in self.doors}, lambda: self.is_over)

    def restore(self) -> None:
        if self.refusal:
            raise UnusablePath(self.refusal)
        self.directory.mkdir(exist_ok=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "pipe")
    place.directory.mkdir()
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


def test_what_cannot_be_made_is_said_once_and_tried_again(place: Place):
    shutil.rmtree(place.directory)
    place.refusal = "no space left"
    assert [looked(place), looked(place)] == [["pipe_directory.missing"], []]
    place.refusal = ""
    assert looked(place) == ["pipe_directory.restored"]


def test_what_cannot_be_there_yet_is_not_said(tmp_path: Path):
    """A link leads to a domain: there may be none yet."""
    door = tmp_path / "control"
    presence = Presence(lambda: None, {door: lambda: None}, lambda: False)
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
