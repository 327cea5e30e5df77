"""An arena of an image as memory on a GPU, which the imager hands over before it is filled: it is mpsd's, not the imager's.

Prose: docs/images.md, "Restoring an image".
"""

import fcntl
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from cuda.bindings import driver
from cuda.core import Device

from mpsd.images.imager.device import ExportedMemory, PinnedMemory, call, device_of
from mpsd.images.imager.requests import MOST_DESCRIPTORS, Channel, Progress, Request
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images

SLOTS = 16


class Restorer:
    """One arena of an image.  The starter makes the arena, and asks for its memory."""

    def __init__(self, channel: Channel, request: Request) -> None:
        """Answer with the arena's facts, and files of its layout and forward state."""
        asked = request.asked
        self._channel, self._progress = channel, Progress(request)
        images = Images.open_existing(Path(asked["directory"]))
        self._image = images.reader(asked["image"] or images.newest(asked["arena"]).name)
        self._arena = self._image.arena(asked["arena"] or None)
        self._facts = facts = self._image.manifest.arenas[self._arena].facts
        self._progress.expect(facts.content_bytes)
        self._device: Device | None = None
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
        if self._device is None:
            self._device = device_of(request.asked["gpu"])
        done = request.asked["done"]
        part = self._facts.allocations[done : done + MOST_DESCRIPTORS]
        with ExitStack() as stack:
            descriptors = []
            for offset, size in part:
                memory = ExportedMemory(self._device, size)
                self._places += [(offset + at, memory.address + at) for at in range(0, size, BLOCK_BYTES)]
                descriptors.append(memory.export())
                stack.callback(os.close, descriptors[-1])
            self._channel.answer("made", descriptors, items=part)

    def fill(self, request: Request) -> None:
        """Copy the blocks to the memory in the order that the starter wants, several at a time, and check them on the way."""
        assert self._device, "the first request has to be `make`"
        order, done = request.descriptors
        host = PinnedMemory(SLOTS * BLOCK_BYTES)
        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(SLOTS):
            free.put(slot)

        def copy(number: int) -> None:
            offset, address = self._places[number]
            slot = free.get()
            try:
                with host.view[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES] as block:
                    self._image.read_into(self._arena, offset, block)
                call(driver.cuMemcpyHtoD, address, host.address + slot * BLOCK_BYTES, BLOCK_BYTES)
            finally:
                free.put(slot)
            os.pwrite(done, b"\1", number)  # from pinned memory, the copy is complete when the call returns
            self._progress.add(BLOCK_BYTES)

        numbers = array("I", os.pread(order, 4 * len(self._places), 0))
        pool = ThreadPoolExecutor(SLOTS, "restorer", self._device.set_current)
        try:
            for _ in pool.map(copy, numbers):
                if self._channel.has_ended:
                    return
        finally:
            pool.shutdown(cancel_futures=True)
            host.close()
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
