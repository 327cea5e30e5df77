"""A restorer that goes on with the newest image: it finds it soon, and reads no more than it has to."""

import os
import threading
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mpsd.images.imager.exported_blocks import ExportedBlocks
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, take

restoring = pytest.importorskip("mpsd.images.imager.restoring")
LONG = 60.0  # seconds that no test waits
MOST_ANSWERS = 8  # the directory changes a few times before an image is complete


class Channel:
    """Takes the answers."""

    has_ended = False

    def __init__(self) -> None:
        self.answers: list[tuple[str, list[int]]] = []

    def answer(self, _kind: str, descriptors: list[int] = [], **facts: Any) -> bool:  # noqa: B006
        numbers = array("I", os.pread(descriptors[-1], 1 << 16, 0)).tolist() if descriptors else []
        self.answers.append((facts.get("image", ""), numbers))
        return True


@pytest.fixture
def restorer(images: Images) -> Iterator[Any]:
    """Return one whose memory is that of the newest image."""
    take(images, "one", FIRST)
    image = images.reader("one")
    facts, numbers = image.manifest.arenas[0].facts, set(range(len(FIRST)))
    made: Any = object.__new__(restoring.Restorer)
    vars(made).update(
        _channel=Channel(), _images=images, _image=image, _arena=0, _facts=facts, _renewed=(0, []), _filled=numbers,
        _blocks=ExportedBlocks(len(FIRST)),
        _progress=SimpleNamespace(begin=lambda: None, expect=lambda size: None),
    )  # fmt: skip
    yield made
    made._image.close()


def renew(restorer: Any, wait_seconds: float = 0.0) -> tuple[str, list[int]]:
    """Return the name of the image, and the numbers of the blocks that differ, which are then there."""
    restorer.renew(SimpleNamespace(asked={"do": "renew", "wait_seconds": wait_seconds}))
    restorer._filled.update(range(restorer._blocks.count))
    found: tuple[str, list[int]] = restorer._channel.answers[-1]
    return found


def test_an_image_that_is_waited_for_is_found_when_it_comes(restorer: Any, images: Images) -> None:
    assert renew(restorer) == ("one", [])
    thread = threading.Timer(0.05, take, (images, "two", FIRST | {1: 99}, 2.0))
    thread.start()
    while (found := renew(restorer, LONG)) == ("one", []):  # the directory has changed, and the image is not complete yet
        pass
    assert found == ("two", [1])
    assert len(restorer._channel.answers) < MOST_ANSWERS, "it waits, and does not answer again and again"
    thread.join()


def test_blocks_that_are_missing_are_not_waited_for(restorer: Any) -> None:
    renew(restorer)
    restorer._filled.discard(2)
    assert renew(restorer, LONG) == ("one", [2])


def test_no_image_is_waited_for_once_the_client_has_ended(restorer: Any) -> None:
    renew(restorer)
    restorer._channel.has_ended = True
    assert renew(restorer, LONG) == ("one", [])


def test_only_new_manifests_are_read(restorer: Any, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them take milliseconds of the pause of a move: an arena of 17 GB has 8,700 blocks."""
    renew(restorer)
    read, found = list[str](), images.directory._decode
    monkeypatch.setattr(images.directory, "_decode", lambda name, at: read.append(name) or found(name, at))
    take(images, "two", FIRST | {1: 99}, 2.0)
    take(images, "early", FIRST, 0.5)
    take(images, "other-1", FIRST, 3.0, arena="other")
    read.clear()
    assert renew(restorer) == ("two", [1])
    assert "one" not in read


def test_the_image_before_is_taken_once_the_newest_one_is_removed(restorer: Any, images: Images) -> None:
    take(images, "two", FIRST | {1: 99}, 2.0)
    assert renew(restorer) == ("two", [1])
    images.remove("two")
    assert renew(restorer) == ("one", [1])


def test_a_damaged_one_is_skipped(restorer: Any, images: Images) -> None:
    renew(restorer)
    take(images, "two", FIRST | {1: 99}, 2.0)
    (images.directory.path / "complete/three").write_bytes(bytes(BLOCK_BYTES))
    assert renew(restorer) == ("two", [1])
