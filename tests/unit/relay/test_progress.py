"""The state of a connection that the next mpsd can know: fresh, whole, or torn."""

import os
from pathlib import Path

import pytest

from mpsd.relay.progress import TO_CLIENT, TO_DOMAIN, HandshakeProgress, Track


def after_a_death(path: Path, slot: int) -> Track:
    """The same connection, as another mpsd finds it."""
    return HandshakeProgress(path, 4).resume([slot])[slot]


def test_a_new_connection_has_not_begun(tmp_path: Path) -> None:
    progress = HandshakeProgress(tmp_path / "progress", 4)
    track = progress.begin()
    found = after_a_death(tmp_path / "progress", track.slot)
    assert (found.has_begun, found.is_torn) == (False, False)


@pytest.mark.parametrize("direction", [TO_DOMAIN, TO_CLIENT])
def test_a_death_between_two_messages_leaves_it_whole_and_one_within_a_message_torn(tmp_path: Path, direction: int) -> None:
    track = HandshakeProgress(tmp_path / "progress", 4).begin()
    with track.passing(direction):
        assert after_a_death(tmp_path / "progress", track.slot).is_torn
    found = after_a_death(tmp_path / "progress", track.slot)
    assert (found.has_begun, found.is_torn) == (True, False)


def test_a_message_that_could_not_be_passed_on_has_changed_nothing(tmp_path: Path) -> None:
    """It is still in the queue."""
    track = HandshakeProgress(tmp_path / "progress", 4).begin()
    with pytest.raises(BrokenPipeError), track.passing(TO_DOMAIN):
        raise BrokenPipeError
    assert not after_a_death(tmp_path / "progress", track.slot).has_begun


def test_slots_are_shared_by_nobody_and_used_again(tmp_path: Path) -> None:
    progress = HandshakeProgress(tmp_path / "progress", 4)
    tracks = [progress.begin() for _ in range(4)]
    assert len({track.slot for track in tracks}) == 4
    with tracks[2].passing(TO_CLIENT):
        pass
    progress.end(tracks[2])
    again = progress.begin()
    assert again.slot == tracks[2].slot
    assert not again.has_begun


def test_the_next_mpsd_keeps_the_slots_of_the_connections_that_are_left(tmp_path: Path) -> None:
    """Also if it is allowed fewer connections, and for any numbers from the keeper."""
    first = HandshakeProgress(tmp_path / "progress", 4)
    left = [first.begin().slot for _ in range(3)]
    second = HandshakeProgress(tmp_path / "progress", 2)
    assert set(second.resume([*left, 10**12])) == set(left)
    assert second.begin().slot not in left


@pytest.mark.parametrize("before", [None, 0, 4096], ids=["no file", "an empty one", "a part of one"])
def test_a_disk_that_is_full_later_ends_nobody(tmp_path: Path, before: int | None) -> None:
    """The file's blocks are allocated from the beginning: a store to a page without disk space would be a SIGBUS."""
    path = tmp_path / "progress"
    if before is not None:
        path.touch()
        os.truncate(path, before)
    HandshakeProgress(path, 64 * 1024)
    assert path.stat().st_size == 128 * 1024
    assert path.stat().st_blocks * 512 >= 128 * 1024
