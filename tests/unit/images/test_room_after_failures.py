"""An image that fails for want of room makes room for the next one."""

from typing import Any

import pytest

from mpsd.errors import NoRoom
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.unit.images.making import take


def test_an_image_that_fails_leaves_no_more_images_than_the_limits_allow(images: Images) -> None:
    """The imager removes none after the last image of a move, nor if it is killed right after an image: the next one had no
    room, and images were removed after a complete one alone."""
    process = pytest.importorskip("mpsd.images.imager.process")
    images.set_limits(Limits(keep=1, quota_bytes=3 * BLOCK_BYTES - 1))
    for number in range(2):
        take(images, f"model.{number}", {0: number}, instant=number)
    made: Any = object.__new__(process.Imager)
    vars(made).update(_arenas={}, _parity=None, _writer=None, _images=images, _has_failed=False)
    with pytest.raises(NoRoom, match="quota") as refused:
        take(images, "model.2", {0: 2}, instant=2)
    made.give_up(str(refused.value))
    assert len(images.directory.names()) == 2, "not before the answer about the failure"
    made.give_up()
    assert images.directory.names() == ["model.1"]
    take(images, "model.3", {0: 3}, instant=3)
