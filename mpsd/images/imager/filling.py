"""Blocks of an image on their way to a GPU's memory, in several threads.

A block is done when the GPU has hashed what arrived there, and the hash is the image's.
"""

import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from typing import Protocol, TypeVar

from mpsd.images.imager.device import Gpu
from mpsd.images.imager.lanes import MOST_BLOCKS, PIECES, Lane
from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES

PIECE_BLOCKS = 4  # that a thread sends at a time: the client may wait for one of them
T = TypeVar("T")


class Blocks(Protocol):
    """The offset of each block, by its number, and its address on the GPU."""

    def __getitem__(self, number: int, /) -> tuple[int, int]: ...


class Filling:
    """One pass over the blocks of an arena, in the order that the starter wants."""

    def __init__(
        self, image: ImageReader, arena: int, blocks: Blocks, order: Sequence[int],
        done: Callable[[Sequence[int]], object], is_wanted: Callable[[], bool], piece_blocks: int = PIECE_BLOCKS,
    ) -> None:  # fmt: skip
        """order: of the blocks' numbers.

        done: is called with the numbers of blocks that are there.  is_wanted: whether to go on.  Both are called in several
        threads."""
        self._image, self._arena, self._blocks, self._order = image, arena, blocks, order
        self._note_done, self._is_wanted = done, is_wanted
        self._piece_blocks = min(piece_blocks, MOST_BLOCKS)
        self._next = 0  # place in the order
        self._failures: dict[int, BaseException] = {}  # by the place in the order where the piece begins
        self._lock = threading.Lock()  # protects these two

    def run(self, gpu: Gpu, lanes: Sequence[Lane]) -> bool:
        """Send the blocks; return False if they are not wanted any more.

        Raise ImageDamaged, or OSError; the pieces before the failed one are there."""
        each = -(-len(self._order) // len(lanes))  # few blocks are for all lanes, and one block needs a single thread
        self._piece_blocks = min(self._piece_blocks, max(1, each))
        lanes = lanes[: max(1, -(-len(self._order) // self._piece_blocks))]
        with ThreadPoolExecutor(len(lanes), "filling", gpu.set_current) as pool:
            list(pool.map(self._send_pieces, lanes))
        if self._failures:
            raise self._failures[min(self._failures)]
        return self._next >= len(self._order)

    def _send_pieces(self, lane: Lane) -> None:
        """Send a piece while the GPU hashes the one before."""
        before: tuple[int, int, int] | None = None
        for place in cycle(range(PIECES)):
            first = self._take()
            sent = None if first is None else self._try(first, partial(self._send, lane, place, first))
            if before is not None:
                self._try(before[1], partial(self._check, lane, *before))
            before = sent
            if before is None:
                return

    def _try(self, first: int, action: Callable[[], T]) -> T | None:
        """Note a failure as that of the piece which begins here; no thread takes another piece then."""
        try:
            return action()
        except BaseException as exc:
            with self._lock:
                self._failures[first] = exc
        return None

    def _take(self) -> int | None:
        """Return where the next piece begins; None: there is none, or no need for it."""
        is_wanted = self._is_wanted()
        with self._lock:
            first = self._next
            if self._failures or first >= len(self._order) or not is_wanted:
                return None
            self._next += self._piece_blocks
            return first

    def _numbers(self, first: int) -> Sequence[int]:
        return self._order[first : first + self._piece_blocks]

    def _send(self, lane: Lane, place: int, first: int) -> tuple[int, int, int]:
        """Return what `_check` wants."""
        numbers = self._numbers(first)
        addresses = [self._blocks[number][1] for number in numbers]  # waits for memory that is being made
        return place, first, lane.send(place, *self._image.places(self._arena, numbers), addresses)

    def _check(self, lane: Lane, place: int, first: int, count: int) -> None:
        """Wait for a piece of which `count` blocks were read, and compare their hashes."""
        numbers, sums = self._numbers(first), lane.sums(place, count)
        good = [number for number, each in zip(numbers, sums, strict=False) if self._image.is_block(self._arena, number, each)]
        if good:
            self._note_done(good)
        if len(good) < len(numbers):
            self._explain(next(number for number in numbers if number not in good))

    def _explain(self, number: int) -> None:
        """Raise the reason why a block is bad, as the processor finds it."""
        offset = self._blocks[number][0]
        with mmap.mmap(-1, BLOCK_BYTES) as memory, memoryview(memory) as block:
            self._image.read_into(self._arena, offset, block)
        raise OSError(f"the block at offset {offset:#x} of the image is good, but arrived in the GPU's memory with other bytes")
