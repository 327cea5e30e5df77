"""Images that are received leave places for those that are taken here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.images import receiving
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.transfer import VERSION, NotTaken, Offer, OfferedArena
from mpsd.images.store import Images
from mpsd.images.stream import StreamBroken
from tests.unit.images.making import FIRST, contents_of, expected, facts, take
from tests.unit.images.test_transfer import cut_after, offered, transfer


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Images]:
    """Return the directory of the other machine, which receives one more image."""
    with Images.open(tmp_path / "there") as made:
        for number in range(383):
            take(made, f"small-{number}", {})
        yield made


def test_senders_leave_places_for_images_that_are_taken_here(there: Images) -> None:
    """Small offers, of the same block or none, took all places, and every later image of the directory failed."""
    small = Offer(VERSION, "sent", "", 1.0, (OfferedArena(facts(), b""),))
    offered(there, small)
    answer = offered(there, Offer(VERSION, "sent-too", "", 1.0, small.arenas))
    assert isinstance(answer, NotTaken)
    assert "has 384 images, of 384 at most: remove some" in answer.why
    take(there, "own", FIRST)
    assert contents_of(there, "own") == expected(FIRST)


def test_senders_give_the_images_taken_here_little_to_read(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offers that name one block two million times took 217 MiB each in the program of every later image."""
    with Images.open(tmp_path / "there") as there:
        take(images, "first", FIRST)
        assert transfer(images, there, "first")[0] == len(FIRST)
        monkeypatch.setattr(receiving, "MOST_MANIFESTS_BYTES", there.directory.manifest_bytes() - 1)
        answer = offered(there, Offer(VERSION, "sent", "", 1.0, (OfferedArena(facts(), b""),)))
        assert isinstance(answer, NotTaken)
        assert "manifests of " in answer.why
        take(there, "own", FIRST)
        assert contents_of(there, "own") == expected(FIRST)


def test_what_arrived_of_the_last_image_that_has_a_place_takes_no_place(images: Images, there: Images) -> None:
    take(images, "first", FIRST)
    sent, _ = transfer(images, there, "first", through=cut_after(2000 + 2 * (BLOCK_BYTES + 16)), kept_blocks=1)
    assert isinstance(sent, StreamBroken)
    assert len(there.directory.names()) == 384
    assert transfer(images, there, "first", kept_blocks=1)[0] == 1
    assert contents_of(there, "first") == expected(FIRST)
