"""The imager fills the first memory of an arena while it makes the rest."""

import os
import threading
from array import array
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from mpsd.images.blocks import read_block
from mpsd.images.imager.exported_blocks import ExportedBlocks
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, take

restoring = pytest.importorskip("mpsd.images.imager.restoring")

SECONDS = 20.0


class Lane:
    """Reads blocks instead of a GPU's lane.  sent: gets the address of each."""

    def __init__(self, key: bytes, sent: list[int], arrived: threading.Semaphore) -> None:
        self.key, self.sent, self.arrived = key, sent, arrived
        self.found: dict[int, list[bytes]] = {}

    def send(self, piece: int, files: list[int], slots: list[int], addresses: list[int]) -> int:
        into, places = bytearray(BLOCK_BYTES), zip(files, slots, strict=True)
        self.found[piece] = [read_block(file, slot, into, self.key) for file, slot in places]
        self.sent += addresses
        for _ in addresses:
            self.arrived.release()
        return len(slots)

    def sums(self, piece: int, count: int) -> list[bytes]:
        return self.found[piece]


class Imager:
    """A restorer of an arena with a block in each of its allocations, which gives memory for one of them at a time."""

    def __init__(self, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
        take(images, "one", FIRST)
        self.image = images.reader("one")
        facts = self.image.manifest.arenas[0].facts
        self.sent, self.answers, self.room = list[int](), list[str](), len(FIRST)
        self.arrived, numbers = threading.Semaphore(0), count(1)
        lanes = [Lane(images.directory.hash_of.block_key, self.sent, self.arrived) for _ in FIRST]

        def memory(_gpu: int, _size: int) -> Any:
            if len(self.blocks) == self.room:
                raise MemoryError("the GPU is out of memory")
            self.blocks.append(next(numbers) * BLOCK_BYTES)
            return SimpleNamespace(address=self.blocks[-1], export=lambda: os.memfd_create("memory"))

        self.blocks: list[int] = []
        monkeypatch.setattr(restoring, "ExportedMemory", memory)
        monkeypatch.setattr(restoring, "MOST_DESCRIPTORS", 1)
        gpu = SimpleNamespace(number=0, set_current=lambda: None)
        self.restorer: Any = object.__new__(restoring.Restorer)
        vars(self.restorer).update(
            _channel=SimpleNamespace(answer=lambda kind, *_, **__: self.answers.append(kind), has_ended=False),
            _start=SimpleNamespace(uuid="GPU-1", gpu=lambda: gpu, lanes=lambda: SimpleNamespace(lanes=lanes)),
            _image=self.image, _arena=0, _facts=facts, _lost=None, _filled=set(), _blocks=ExportedBlocks(len(FIRST)),
            _begin_filling=None, _filling=None, _is_made=False, _progress=SimpleNamespace(add=lambda size: None),
        )  # fmt: skip
        self.done = os.memfd_create("done")
        os.truncate(self.done, len(FIRST))

    def fill(self, *order: int) -> None:
        with os.fdopen(os.memfd_create("order"), "wb") as file:
            file.write(array("I", order).tobytes())
            file.flush()
            self.restorer.fill(SimpleNamespace(asked={}, descriptors=[file.fileno(), self.done]))

    def make(self, done: int) -> None:
        self.restorer.make(SimpleNamespace(asked={"gpu": "GPU-1", "done": done}))


@pytest.fixture
def imager(images: Images, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imager]:
    made = Imager(images, monkeypatch)
    yield made
    made.image.close()
    os.close(made.done)


def test_blocks_come_before_all_memory_is_made(imager: Imager) -> None:
    """A program computes with the first ones meanwhile.  The answer comes when it has all memory."""
    imager.fill(0, 2, 1)
    for number in range(len(FIRST)):
        imager.make(number)
        assert imager.arrived.acquire(timeout=SECONDS)
    imager.make(len(FIRST))
    assert imager.answers == ["made"] * 4 + ["filled"]
    assert imager.sent == imager.blocks
    assert os.pread(imager.done, 8, 0) == b"\1\1\1"


def test_memory_that_is_there_is_filled_at_once(imager: Imager) -> None:
    """As a replica's for each further image."""
    for number in range(4):
        imager.make(number)
    imager.fill(1)
    assert imager.answers == ["made"] * 4 + ["filled"]
    assert os.pread(imager.done, 8, 0) == b"\0\1\0"


def test_without_memory_for_all_none_is_filled_any_more(imager: Imager) -> None:
    imager.room = 1
    imager.fill(0, 1, 2)
    imager.make(0)
    with pytest.raises(MemoryError):
        imager.make(1)
    filling = imager.restorer._filling
    imager.restorer.give_up("no memory")
    assert filling.done()
    assert imager.answers == ["made"]


def test_damage_is_reported_after_the_memory(imager: Imager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process waits for the memory first, and would take no other answer."""
    monkeypatch.setattr(imager.image, "is_block", lambda *_: False)
    monkeypatch.setattr(imager.image, "read_into", lambda *_: (_ for _ in ()).throw(ImageDamaged("bad")))
    imager.fill(0, 1, 2)
    for number in range(len(FIRST)):
        imager.make(number)
    with pytest.raises(ImageDamaged, match="bad"):
        imager.make(len(FIRST))
    assert imager.answers == ["made"] * 4


def test_no_thread_waits_for_a_block_that_the_arena_does_not_have() -> None:
    blocks = ExportedBlocks(2)
    blocks.add(0, 1 << 30, 2 * BLOCK_BYTES)
    assert blocks[1] == (BLOCK_BYTES, (1 << 30) + BLOCK_BYTES)
    with pytest.raises(IndexError):
        blocks[2]
