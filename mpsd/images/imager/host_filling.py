"""Blocks that the processor makes or checks, on their way to a GPU: those of a lost arena, or what is left of a damaged image.

A whole image takes the faster way, on which the GPU checks (filling.py).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from cuda.bindings import driver

from mpsd.images.imager.device import Gpu, PinnedMemory, call, runs
from mpsd.images.imager.filling import Blocks
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged

THREADS = 8  # so many blocks that are rebuilt can be read at a time from each GPU (SLOTS in copier.py)
MOST_LOST = 2000  # parts of an arena: they are named in one datagram


class HostFilling:
    """One pass over the blocks of an arena, in the order that the starter wants."""

    def __init__(
        self, read: Callable[[int, memoryview], object], blocks: Blocks, order: Sequence[int],
        done: Callable[[Sequence[int]], object], is_wanted: Callable[[], bool], *, is_partial: bool,
    ) -> None:  # fmt: skip
        """read: read the block at an offset, and check it, or raise ImageDamaged.  The others: as of Filling.

        is_partial: a block that is damaged becomes zeros."""
        self._read, self._blocks, self._order = read, blocks, order
        self._note_done, self._is_wanted, self._is_partial = done, is_wanted, is_partial
        self._lost: list[int] = []  # offsets
        self._free: SimpleQueue[int] = SimpleQueue()  # places in the host's memory
        for place in range(THREADS):
            self._free.put(place)

    def run(self, gpu: Gpu) -> bool:
        """Send the blocks; return False if they are not wanted any more.

        Raise ImageDamaged, or OSError; the blocks before the failed one are there."""
        gpu.set_current()
        host = PinnedMemory(THREADS * BLOCK_BYTES)
        pool = ThreadPoolExecutor(THREADS, "host-filling")
        try:
            for _ in pool.map(lambda number: self._send(gpu, host, number), self._order):
                if not self._is_wanted():
                    return False
        finally:
            pool.shutdown(cancel_futures=True)
            gpu.set_current()
            host.close()
        if len(self.lost) > MOST_LOST:
            raise ImageDamaged(f"{len(self._lost)} blocks cannot be had, in more than {MOST_LOST} parts of the arena")
        return True

    @property
    def lost(self) -> list[tuple[int, int]]:
        """The (offset, bytes) of what is zeros."""
        return [(offset, count * BLOCK_BYTES) for _, count, offset in runs(sorted(self._lost), BLOCK_BYTES)]

    def _send(self, gpu: Gpu, host: PinnedMemory, number: int) -> None:
        (offset, address), place = self._blocks[number], self._free.get()
        try:
            with host.view[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES] as block:
                self._read(offset, block)
            gpu.set_current()  # to read a lost arena's parity, the thread has worked with others
            call(driver.cuMemcpyHtoD, address, host.address + place * BLOCK_BYTES, BLOCK_BYTES)
        except ImageDamaged:
            if not self._is_partial:
                raise
            gpu.set_current()
            call(driver.cuMemsetD8, address, 0, BLOCK_BYTES)
            self._lost.append(offset)
        else:
            self._note_done([number])  # from pinned memory, the copy is complete when the call returns
        finally:
            self._free.put(place)
