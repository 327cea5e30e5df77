"""An arena of an image as memory on a GPU, which the imager hands over piece by piece: it is mpsd's, not the imager's.

Prose: docs/images.md, "Restoring an image".
"""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from cuda.bindings import driver
from cuda.core import Device

from mpsd.images.imager.device import ExportedMemory, PinnedMemory, call, device_of
from mpsd.images.imager.requests import MOST_DESCRIPTORS, Channel, Progress, Request
from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images

SLOTS = 16


class Restorer:
    """One arena of an image.  The starter makes the arena, and asks for its memory."""

    def __init__(self, channel: Channel, request: Request) -> None:
        """Answer with the arena's facts, and files of its layout and forward state."""
        asked = request.asked
        self._channel, self._progress = channel, Progress(request)
        images = Images.open(Path(asked["directory"]))
        self._image = images.reader(asked["image"] or images.newest(asked["arena"]).name)
        self._arena = self._image.arena(asked["arena"] or None)
        self._facts = facts = self._image.manifest.arenas[self._arena].facts
        self._progress.expect(facts.content_bytes)
        self._filler: Filler | None = None
        with ExitStack() as stack:
            files = [_memory_file(data) for data in (facts.layout, facts.state) if data]
            for each in files:
                stack.callback(os.close, each)
            channel.answer(
                "found", files, arena=facts.name, gpu=facts.gpu, window_bytes=facts.window_bytes,
                capacity_bytes=facts.capacity_bytes, has_layout=bool(facts.layout), has_state=bool(facts.state),
            )  # fmt: skip

    def fill(self, request: Request) -> None:
        """Answer with allocations after the first `done`, filled; none at the end."""
        if self._filler is None:
            self._filler = Filler(device_of(request.asked["gpu"]), self._image, self._arena, self._progress)
        done = request.asked["done"]
        part = self._facts.allocations[done : done + MOST_DESCRIPTORS]
        with ExitStack() as stack:
            descriptors = []
            for offset, size in part:
                descriptors.append(self._filler.fill(offset, size))
                stack.callback(os.close, descriptors[-1])
            self._channel.answer("filled", descriptors, items=part)

    def give_up(self) -> None:
        """Nothing is under way between two requests."""


class Filler:
    """Copies blocks of an image to new memory of a GPU, several at a time."""

    def __init__(self, device: Device, image: ImageReader, arena: int, progress: Progress) -> None:
        self._device, self._image, self._arena, self._progress = device, image, arena, progress
        self._host = PinnedMemory(SLOTS * BLOCK_BYTES)
        self._free: SimpleQueue[int] = SimpleQueue()
        for slot in range(SLOTS):
            self._free.put(slot)
        self._pool = ThreadPoolExecutor(SLOTS, "restorer", device.set_current)

    def fill(self, offset: int, size: int) -> int:
        """Return a descriptor of new memory with the allocation's bytes, which are checked on the way."""
        memory = ExportedMemory(self._device, size)
        try:
            for _ in self._pool.map(partial(self._copy, memory.address, offset), range(0, size, BLOCK_BYTES)):
                pass
            call(driver.cuCtxSynchronize)
            return memory.export()
        finally:
            memory.close()

    def _copy(self, address: int, offset: int, at: int) -> None:
        slot = self._free.get()
        try:
            with self._host.view[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES] as block:
                self._image.read_into(self._arena, offset + at, block)
            call(driver.cuMemcpyHtoD, address + at, self._host.address + slot * BLOCK_BYTES, BLOCK_BYTES)
            self._progress.add(BLOCK_BYTES)
        finally:
            self._free.put(slot)


def _memory_file(data: bytes) -> int:
    """Return a file in memory that cannot change its size, as a reader of a forward state demands."""
    descriptor = os.memfd_create("image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor
