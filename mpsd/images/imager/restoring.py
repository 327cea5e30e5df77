"""An arena of an image as memory on a GPU, which the imager hands over before it is filled: it is mpsd's, not the imager's.

Prose: docs/images.md, "Restoring an image".
"""

import fcntl
import os
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpsd.images.imager.device import ExportedMemory, Gpu, runs
from mpsd.images.imager.exported_blocks import ExportedBlocks
from mpsd.images.imager.filling import Filling
from mpsd.images.imager.host_filling import HostFilling
from mpsd.images.imager.lanes import Lanes
from mpsd.images.imager.requests import MOST_DESCRIPTORS, Channel, Progress, Request
from mpsd.images.imager.warming import END_SECONDS
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import BLOCK_BYTES, differing
from mpsd.images.rules.refusals import ImageDamaged, NoSuchImage
from mpsd.images.store import Images, newest_of

if TYPE_CHECKING:
    from mpsd.images.imager.rebuilding import RebuiltArena

Filled = list[tuple[int, int]]  # the (offset, bytes) that are zeros instead
THREADS = 12
LOOK_SECONDS = 0.0005  # between two looks for an image that is waited for: 15 us each


class Start:
    """A GPU's context, and then what the blocks need, made in a thread while the starter asks mpsd for the arena."""

    def __init__(self, uuid: str, hash_of: BlockHash, threads: int = THREADS) -> None:
        self.uuid, self._hash_of, self._threads = uuid, hash_of, threads
        thread = ThreadPoolExecutor(1, "start")
        self._gpu, self._lanes = thread.submit(Gpu, uuid), thread.submit(self._make_lanes)
        thread.submit(self._make_buffers)
        thread.shutdown(wait=False)

    def _make_lanes(self) -> Lanes:
        gpu = self.gpu()
        gpu.set_current()
        return Lanes(gpu, self._hash_of.block_key, self._threads)

    def _make_buffers(self) -> None:
        self.lanes().make_buffers()

    def gpu(self) -> Gpu:
        """Wait for the context.  Raise LookupError or OSError."""
        return self._gpu.result()

    def lanes(self) -> Lanes:
        return self._lanes.result()

    def wait(self) -> None:
        """Wait until the context is there, or cannot be made, but not for ever."""
        wait([self._gpu], END_SECONDS)


class Restorer:
    """One arena of an image, or of one image after the other.  The starter makes the arena, and asks for its memory."""

    def __init__(self, channel: Channel, request: Request) -> None:
        """Answer with the arena's facts, and files with the layout and the forward state."""
        asked = request.asked
        self._channel, self._progress = channel, Progress(request)
        self._images = images = Images.open_existing(Path(asked["directory"]))
        self._image = image = images.reader(asked["image"] or images.newest(asked["arena"]).name)
        self._lost: RebuiltArena | None = None
        if image.manifest.members:
            rebuilding = import_module("mpsd.images.imager.rebuilding")  # loads NumPy, which no other restore needs
            self._lost = rebuilding.RebuiltArena(image, asked["arena"], images.directory.hash_of)
            self._facts = facts = self._lost.facts
        else:
            self._arena = image.arena(asked["arena"] or None)
            self._facts = facts = image.manifest.arenas[self._arena].facts
        self._progress.expect(facts.content_bytes)
        self._hash_of = images.directory.hash_of
        self._start: Start | None = None
        self._blocks = ExportedBlocks(facts.content_bytes // BLOCK_BYTES)
        self._begin_filling: Callable[[], Filled | None] | None = None  # once there is memory
        self._filling: Future[Filled | None] | None = None
        self._is_made = False  # all memory
        self._renewed: tuple[int, list[str]] = (0, [])  # what `_seen` was when the newest image was this one
        self._filled: set[int] = set()  # numbers of the blocks that the memory has as the image has them
        allocations = array("Q", chain.from_iterable(facts.allocations)).tobytes()
        is_there = self._answer("found", allocations, others=self._lost.others if self._lost else [])
        # After the answer: where that fails, no `give_up` waits for the context.  Else `gpu` is the ordinal of one, or another
        # version's request; and that of a lost arena may be lost.
        if is_there and not self._lost and asked.get("gpu") in ("", facts.gpu):
            self._start = Start(facts.gpu, self._hash_of)

    def _answer(self, kind: str, *more: bytes, **facts: Any) -> bool:
        """Answer with the facts of the arena in the image, and files with the layout, the state and what else is given.  Return
        whether the process is still there."""
        of, manifest = self._facts, self._image.manifest
        with ExitStack() as stack:
            files = [_memory_file(data) for data in (*filter(None, (of.layout, of.state)), *more)]
            for each in files:
                stack.callback(os.close, each)
            return self._channel.answer(
                kind, files, arena=of.name, gpu=of.gpu, window_bytes=of.window_bytes, capacity_bytes=of.capacity_bytes,
                has_layout=bool(of.layout), has_state=bool(of.state), image=manifest.name, instant=manifest.instant, **facts,
            )  # fmt: skip

    def renew(self, request: Request) -> None:
        """Go on with the newest image of the arena, and answer which blocks the memory lacks.  More images follow: a
        damaged one is skipped."""
        seen, end = self._seen(), time.monotonic() + request.asked.get("wait_seconds", 0.0)
        is_whole = len(self._filled) == self._blocks.count
        while is_whole and seen == self._renewed and time.monotonic() < end and not self._channel.has_ended:
            time.sleep(LOOK_SECONDS)
            seen = self._seen()
        if is_whole and seen == self._renewed:
            self._answer("renewed", b"", is_same_memory=True)
            return
        image = self._images.reader(self._newest(seen[1]))
        arena = image.arena(self._facts.name)
        found = image.manifest.arenas[arena]
        if found.facts.allocations != self._facts.allocations:
            image.close()
            self._channel.answer("renewed", is_same_memory=False)
            return
        before = self._image.manifest.arenas[self._arena].places
        self._image.close()
        self._image, self._arena, self._facts, self._renewed = image, arena, found.facts, seen
        missing = set(range(self._blocks.count)) - self._filled
        differ = sorted(missing.union(differing(before, found.places)))
        self._filled.difference_update(differ)
        self._progress.begin()
        self._progress.expect(len(differ) * BLOCK_BYTES)
        self._answer("renewed", array("I", differ).tobytes(), is_same_memory=True)

    def _newest(self, names: list[str]) -> str:
        """Return the name of the newest image of the arena.  names: of all images.  Read only those that were not there when
        the image here was the newest one, as long as that exists."""
        before, ours = self._renewed[1], self._image.manifest
        if ours.name not in before or ours.name not in names:
            return self._images.newest(self._facts.name, skips_damaged=True).name
        found = [ours]
        for name in set(names).difference(before):
            with suppress(ImageDamaged, NoSuchImage):
                found.append(self._images.find(name))
        return newest_of(found, self._facts.name).name

    def _seen(self) -> tuple[int, list[str]]:
        """Return what changes when an image comes or goes."""
        directory = self._images.directory
        return os.fstat(directory.complete).st_mtime_ns, directory.names()

    def other(self, request: Request) -> None:
        """Note another member of a lost arena's parity, with memory that follows; or why it has none."""
        assert self._lost, "the image has all blocks"
        self._lost.add(request.asked["arena"], request.asked)

    def allocations(self, request: Request) -> None:
        assert self._lost, "the image has all blocks"
        self._lost.add_memory(request.asked["arena"], request.asked["items"], request.descriptors)

    def wait(self, request: Request) -> None:
        """Answer that everything before was done."""
        self._channel.answer("ready")

    def make(self, request: Request) -> None:
        """Answer with new memory for the allocations after the first `done`; none at the end.  What `fill` has asked begins
        with the first memory, and is answered after that end."""
        uuid = request.asked["gpu"]
        if self._start is None or self._start.uuid != uuid:
            self._start = Start(uuid, self._hash_of, 0 if self._lost else THREADS)  # it is filled without lanes
        gpu = self._start.gpu()
        gpu.set_current()
        self._start_filling()
        done = request.asked["done"]
        part = self._facts.allocations[done : done + MOST_DESCRIPTORS]
        with ExitStack() as stack:
            descriptors = []
            for offset, size in part:
                memory = ExportedMemory(gpu.number, size)
                descriptors.append(memory.export())
                stack.callback(os.close, descriptors[-1])
                self._blocks.add(offset, memory.address, size)
            self._channel.answer("made", descriptors)
        if not part:
            self._is_made = True
            self._answer_filled()

    def fill(self, request: Request) -> None:
        """Send the blocks to the memory in the order that the starter wants, and note those that are there.

        The memory may be made afterwards.  is_partial: a block that cannot be had becomes zeros, and is named in the answer."""
        order, done = request.descriptors
        numbers, is_partial = array("I", os.pread(order, 4 * self._blocks.count, 0)), bool(request.asked.get("is_partial"))
        self._filled.difference_update(numbers)
        self._begin_filling = partial(self._fill, numbers, os.dup(done), is_partial)
        if self._is_made:
            self._start_filling()
            self._answer_filled()

    def _start_filling(self) -> None:
        """Begin what `fill` has asked, in a thread: more memory is made meanwhile."""
        begin, self._begin_filling = self._begin_filling, None
        if begin:
            pool = ThreadPoolExecutor(1, "fill")
            self._filling = pool.submit(begin)
            pool.shutdown(wait=False)

    def _answer_filled(self) -> None:
        filling, self._filling = self._filling, None
        lost = filling.result() if filling else None
        if lost is not None:
            self._channel.answer("filled", lost=lost)

    def _fill(self, numbers: Sequence[int], done: int, is_partial: bool) -> Filled | None:
        """Return what became zeros; None: the blocks are not wanted any more.  Owns `done`."""

        def note_done(numbers: Sequence[int]) -> None:
            for _, count, number in runs(numbers, 1):
                os.pwrite(done, b"\1" * count, number)
            self._filled.update(numbers)
            self._progress.add(len(numbers) * BLOCK_BYTES)

        def is_wanted() -> bool:
            return not (self._blocks.has_ended or self._channel.has_ended)

        assert self._start, "the first request for memory has to be `make`"
        try:
            if self._lost or is_partial:
                read = self._lost.read if self._lost else partial(self._image.read_into, self._arena)
                slow = HostFilling(read, self._blocks, numbers, note_done, is_wanted, is_partial=is_partial)
                if not slow.run(self._start.gpu()):
                    return None
                self._progress.add(sum(size for _, size in slow.lost))
                return slow.lost
            filling = Filling(self._image, self._arena, self._blocks, numbers, note_done, is_wanted)
            return [] if filling.run(self._start.gpu(), self._start.lanes().lanes) else None
        finally:
            os.close(done)

    def give_up(self, why: str = "") -> None:
        """Let no thread send blocks.  At the end, wait for a context that is being made: nothing else is under way between
        requests.  why: one failed."""
        if self._filling:
            self._blocks.end()
            wait([self._filling])
            self._filling = None
        if self._start and not why:
            self._start.wait()


def _memory_file(data: bytes) -> int:
    """Return a file in memory that cannot change its size, as a reader of a forward state demands."""
    descriptor = os.memfd_create("image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor
