"""An arena of an image as memory on a GPU, which the imager hands over before it is filled: it is mpsd's, not the imager's.

Prose: docs/images.md, "Restoring an image".
"""

import fcntl
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from cuda.bindings import driver

from mpsd.images.imager.device import ExportedMemory, Gpu, PinnedMemory, call, runs
from mpsd.images.imager.requests import MOST_DESCRIPTORS, Channel, Progress, Request
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.store import Images

THREADS = 12
PIECE_BLOCKS = 4
HOST_BYTES = THREADS * PIECE_BLOCKS * BLOCK_BYTES


class Restorer:
    """One arena of an image.  The starter makes the arena, and asks for its memory."""

    def __init__(self, channel: Channel, request: Request) -> None:
        """Answer with the arena's facts, and files with the layout and the forward state."""
        asked = request.asked
        self._channel, self._progress = channel, Progress(request)
        images = Images.open_existing(Path(asked["directory"]))
        self._image = images.reader(asked["image"] or images.newest(asked["arena"]).name)
        self._arena = self._image.arena(asked["arena"] or None)
        self._facts = facts = self._image.manifest.arenas[self._arena].facts
        self._progress.expect(facts.content_bytes)
        self._gpu: Gpu | None = None
        self._host: PinnedMemory | None = None
        self._places: list[tuple[int, int]] = []  # of each block: its offset, and its address here
        with ExitStack() as stack:
            files = [_memory_file(data) for data in (facts.layout, facts.state) if data]
            for each in files:
                stack.callback(os.close, each)
            channel.answer(
                "found", files, arena=facts.name, gpu=facts.gpu, window_bytes=facts.window_bytes,
                capacity_bytes=facts.capacity_bytes, has_layout=bool(facts.layout), has_state=bool(facts.state),
            )  # fmt: skip

    def make(self, request: Request) -> None:
        """Answer with new memory for the allocations after the first `done`; none at the end."""
        if self._gpu is None:
            self._gpu = Gpu(request.asked["gpu"])
            self._gpu.set_current()
        done = request.asked["done"]
        part = self._facts.allocations[done : done + MOST_DESCRIPTORS]
        with ExitStack() as stack:
            descriptors = []
            for offset, size in part:
                memory = ExportedMemory(self._gpu.number, size)
                self._places += [(offset + at, memory.address + at) for at in range(0, size, BLOCK_BYTES)]
                descriptors.append(memory.export())
                stack.callback(os.close, descriptors[-1])
            self._channel.answer("made", descriptors, items=part)
        self._host = self._host or PinnedMemory(HOST_BYTES)  # while the starter maps the memory: it takes 60 ms

    def fill(self, request: Request) -> None:
        """Copy the blocks to the memory in the order that the starter wants, several at a time, and check them on the way."""
        assert self._gpu, "the first request has to be `make`"
        order, done = request.descriptors
        host = self._host or PinnedMemory(HOST_BYTES)
        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(0, THREADS * PIECE_BLOCKS, PIECE_BLOCKS):
            free.put(slot)

        def copy(numbers: Sequence[int]) -> None:
            try:
                copy_piece(numbers)
            except ImageDamaged:
                if len(numbers) == 1:
                    raise
                for at in range(len(numbers)):  # the starter may wait only for blocks of the piece that are good
                    copy_piece(numbers[at : at + 1])

        def copy_piece(numbers: Sequence[int]) -> None:
            slot = free.get()
            try:
                at = slot * BLOCK_BYTES
                with host.view[at : at + len(numbers) * BLOCK_BYTES] as blocks:
                    self._image.read(self._arena, [self._places[number][0] for number in numbers], blocks)
                for first, count, address in runs([self._places[number][1] for number in numbers], BLOCK_BYTES):
                    call(driver.cuMemcpyHtoD, address, host.address + at + first * BLOCK_BYTES, count * BLOCK_BYTES)
            finally:
                free.put(slot)
            for _, count, number in runs(numbers, 1):
                os.pwrite(done, b"\1" * count, number)  # from pinned memory, the copy is complete when the call returns
            self._progress.add(len(numbers) * BLOCK_BYTES)

        numbers = array("I", os.pread(order, 4 * len(self._places), 0))
        pieces = [numbers[at : at + PIECE_BLOCKS] for at in range(0, len(numbers), PIECE_BLOCKS)]
        pool = ThreadPoolExecutor(THREADS, "restorer", self._gpu.set_current)
        try:
            for _ in pool.map(copy, pieces):
                if self._channel.has_ended:
                    return
        finally:
            pool.shutdown(cancel_futures=True)
            host.close()
            self._host = None
        self._channel.answer("filled")

    def give_up(self, why: str = "") -> None:
        """Nothing is under way between two requests."""


def _memory_file(data: bytes) -> int:
    """Return a file in memory that cannot change its size, as a reader of a forward state demands."""
    descriptor = os.memfd_create("image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor
