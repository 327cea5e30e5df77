"""Taking an image while its arena is being written.

    prepare   blocks are copied to the host while the client runs, and again while fewer change each time; not those that
              change all the time;
    stage     the client stands still: the blocks that kept changing are copied inside the GPU, and those of the others with
              other bytes than the saved ones;
    finish    the client runs: the staged copies go to the host.

A block is hashed where it was saved from: the imager copies it into its own memory on the GPU, hashes on the way what it
copies, and sends the copy to the host.  So a hash always belongs to the bytes that were saved, at any moment that the client
wrote; a hash of the block in the arena, before or after the copy, would not.  At the barrier the imager hashes the arena's
blocks: where the hash is equal, the saved bytes are the barrier's.

Prose: docs/images.md, "Taking an image".
"""

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy
from cuda.bindings import driver

from mpsd.errors import MpsdError
from mpsd.images.imager.device import ArenaMemory, DeviceMemory, Gpu, PinnedMemory, call, free_bytes, make_event, make_stream
from mpsd.images.imager.kernel import BLOCK_BYTES, HashKernel
from mpsd.images.rules.block_hash import SUMS_BYTES

PIECE_BLOCKS = 8  # of a launch: it has to wait until a kernel of the client ends
PARTS = 16  # of a block of a piece: a part for each multiprocessor, so that no kernel of the client waits for a slow one
DMA_BLOCKS = 2  # 4 MiB: a client's copy waits for so much at most
SLOTS = 8
ROUNDS = 4  # of copies before the barrier
LEAST_ROOM = 32  # blocks
SUMS = SUMS_BYTES // 8
MOST_RATE = 7e9  # bytes a second: a client that needs all of the GPU's memory bandwidth keeps 0.97 of its speed
SPARE = 8  # the part of the GPU's free memory that staging leaves to others
WATCH = 20  # the part of the time of their copying that blocks are watched before it
FEW = 8  # after a copy of at most this part of all blocks, looking at all again would cost the client more than it saves

BLOCK = numpy.uint64(BLOCK_BYTES)
Save = Callable[[int, bytes, memoryview], None]  # an offset, the sums of the bytes, the bytes
Share = Callable[[int, bytes], bool]  # an offset, the sums: whether the store has a block of this hash, and takes it


class ClientWroteError(MpsdError):
    """The arena changed between the barrier and its release."""


class Copier:
    """Streams, buffers and the hash kernel of one GPU: what lasts from image to image."""

    def __init__(self, gpu: Gpu, key: bytes) -> None:
        """gpu: the current one.  key: of the hash."""
        self.stream = make_stream(call(driver.cuCtxGetStreamPriorityRange)[0])  # the lowest
        self.kernel = HashKernel(gpu.number)
        self._copied = [make_event(is_awaited=True) for _ in range(SLOTS)]  # a thread for each piece in flight waits for it
        blocks = SLOTS * PIECE_BLOCKS
        self._ring = DeviceMemory(blocks * BLOCK_BYTES)
        self._host = PinnedMemory(blocks * BLOCK_BYTES)
        # The GPU uses both where they are.
        self._host_hashes, self._host_table = PinnedMemory(blocks * PARTS * SUMS_BYTES), PinnedMemory(blocks * 8)
        self._key = DeviceMemory(len(key))
        call(driver.cuMemcpyHtoD, self._key.address, key, len(key))
        self._free: SimpleQueue[int] = SimpleQueue()
        for slot in range(SLOTS):
            self._free.put(slot)
        self._pool = ThreadPoolExecutor(SLOTS, "imager", gpu.set_current)

    def table(self, addresses: Any) -> "BlockTable":
        return BlockTable(self, addresses)

    def hash(self, table: int, count: int, out: int, to: int = 0, parts: int = 1) -> None:
        """Enqueue the hashes of the blocks at the addresses in `table`.  to: copy them there, and hash what is copied."""
        self.kernel.launch(self.stream, table, count, self._key.address, out, to, parts)

    def save(
        self, addresses: Sequence[int], done: Callable[[int, bytes, memoryview], None], *, rate: float = MOST_RATE,
        sums: int = 0,
    ) -> None:  # fmt: skip
        """Copy blocks to the host in pieces, and call done(number, hash, bytes) for each, in several threads.

        rate: so many bytes a second at most, so that a client goes on.  sums: where the GPU has the hashes of the blocks, for
        blocks that do not change any more.  The bytes last until `done` returns.  Raises what `done` raised first, after all
        threads are through."""
        failed: list[BaseException] = []
        ended = threading.Semaphore(0)
        begun, began = 0, time.monotonic()
        size = min(PIECE_BLOCKS, max(1, -(-len(addresses) // SLOTS)))  # few blocks are for all threads, too
        for first in range(0, len(addresses), size):
            time.sleep(max(0.0, began + first * BLOCK_BYTES / rate - time.monotonic()))
            slot = self._free.get()
            piece = addresses[first : first + size]
            try:
                if not failed:
                    self._enqueue(slot, piece, sums and sums + first * SUMS_BYTES)
            except BaseException as exc:
                failed.append(exc)
            if failed:
                self._free.put(slot)
                break
            begun += 1
            self._pool.submit(self._deliver, slot, range(first, first + len(piece)), 1 if sums else PARTS, done, failed, ended)
        for _ in range(begun):
            ended.acquire()
        if failed:
            raise failed[0]

    def _enqueue(self, slot: int, piece: Sequence[int], sums: int = 0) -> None:
        """Copy a piece to the slot's place in the host; the slot's event is when it is there, with the hashes.

        sums: where the GPU has the hashes of the blocks, which do not change any more.  Otherwise blocks may change: they are
        copied to the ring, and hashed on the way."""
        number = slot * PIECE_BLOCKS
        ring, host = (memory.address + number * BLOCK_BYTES for memory in (self._ring, self._host))
        rows = number * PARTS * SUMS_BYTES
        if sums:
            size = len(piece) * SUMS_BYTES
            self._host_hashes.view[rows : rows + size] = bytes(size)  # a GPU that fails may leave what was there
            for index, address in enumerate(piece):
                call(driver.cuMemcpyDtoHAsync, host + index * BLOCK_BYTES, address, BLOCK_BYTES, self.stream)
            call(driver.cuMemcpyDtoHAsync, self._host_hashes.address + rows, sums, size, self.stream)
        else:
            struct.pack_into(f"={len(piece)}Q", self._host_table.view, number * 8, *piece)
            self.hash(self._host_table.address + number * 8, len(piece), self._host_hashes.address + rows, ring, PARTS)
            for first in range(0, len(piece), DMA_BLOCKS):
                at, size = first * BLOCK_BYTES, min(DMA_BLOCKS, len(piece) - first) * BLOCK_BYTES
                call(driver.cuMemcpyDtoHAsync, host + at, ring + at, size, self.stream)
        call(driver.cuEventRecord, self._copied[slot], self.stream)

    @contextmanager
    def fetch(self, addresses: Sequence[int]) -> Iterator[Callable[[], list[tuple[bytes, memoryview]]]]:
        """Begin to copy blocks, PIECE_BLOCKS at most, to the host.  The function that it gives waits, and returns the hash and
        the bytes of each, which last until the end of the context.  The GPU is the current one; a thread has one at a time."""
        slot = self._free.get()
        try:
            self._enqueue(slot, addresses)

            def wait() -> list[tuple[bytes, memoryview]]:
                call(driver.cuEventSynchronize, self._copied[slot])
                return [self._block(slot, index, PARTS) for index in range(len(addresses))]

            try:
                yield wait
            finally:
                call(driver.cuEventSynchronize, self._copied[slot])  # nothing is copied to the slot any more
        finally:
            self._free.put(slot)

    def _block(self, slot: int, index: int, parts: int) -> tuple[bytes, memoryview]:
        """Return the hash, the sum of that of the parts, and the bytes of a block that was copied to this place of a slot."""
        number = slot * PIECE_BLOCKS + index
        first = slot * PIECE_BLOCKS * PARTS + index * parts
        rows = self._host_hashes.view[first * SUMS_BYTES : (first + parts) * SUMS_BYTES]
        sums = numpy.frombuffer(rows, numpy.uint64).reshape(parts, SUMS).sum(axis=0, dtype=numpy.uint64)
        return sums.tobytes(), self._host.view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]

    def _deliver(
        self, slot: int, numbers: range, parts: int, done: Callable[[int, bytes, memoryview], None],
        failed: list[BaseException], ended: threading.Semaphore,
    ) -> None:  # fmt: skip
        try:
            call(driver.cuEventSynchronize, self._copied[slot])
            for index, number in enumerate(numbers):
                done(number, *self._block(slot, index, parts))
        except BaseException as exc:
            failed.append(exc)
        finally:
            self._free.put(slot)
            ended.release()


def _most_room() -> int:
    """Return how many blocks the current GPU has room for, beside what it leaves to others."""
    return free_bytes() // SPARE * (SPARE - 1) // BLOCK_BYTES


class BlockTable:
    """The addresses of blocks in the GPU's memory, and room for their hashes there and in the host; made before the barrier."""

    def __init__(self, copier: Copier, addresses: Any) -> None:
        self._copier = copier
        size = max(1, len(addresses))
        self.table, self.out = DeviceMemory(8 * size), DeviceMemory(SUMS_BYTES * size)
        self._host = PinnedMemory(SUMS_BYTES * size)
        self.fill(addresses)

    def fill(self, addresses: Any) -> None:
        """Let these, as many at most, be the addresses."""
        if len(addresses):
            values = addresses.astype(numpy.uint64).tobytes()
            call(driver.cuMemcpyHtoD, self.table.address, values, len(values))

    def hashes(self, count: int, to: int = 0) -> Any:
        """Hash the first `count` blocks; return an array with a row for each.  to: copy them there, and hash the copies."""
        if count:
            self._host.view[: count * SUMS_BYTES] = bytes(count * SUMS_BYTES)  # a GPU that fails may leave what was there
            self._copier.hash(self.table.address, count, self.out.address, to)
            size, queue = count * SUMS_BYTES, self._copier.stream
            call(driver.cuMemcpyDtoHAsync, self._host.address, self.out.address, size, queue)
            call(driver.cuStreamSynchronize, queue)
        return numpy.frombuffer(bytes(self._host.view[: count * SUMS_BYTES]), numpy.uint64).reshape(count, SUMS)

    def close(self) -> None:
        call(driver.cuStreamSynchronize, self._copier.stream)
        for each in (self.table, self.out, self._host):
            each.close()


class Taking:
    """One image of one arena.  The methods are called in the order above; `close` at any time."""

    def __init__(
        self, copier: Copier, memory: ArenaMemory, save: Save, expect: Callable[[int], None] = lambda size: None,
        share: Share = lambda offset, sums: False,
    ) -> None:  # fmt: skip
        """save: called for each block, in several threads.  expect: called with the bytes to be saved, before they are, and
        with a number below 0 for those that will not be.  share: called for each block before that."""
        self._copier, self._memory, self._save, self._expect, self._share = copier, memory, save, expect, share
        self._staging: DeviceMemory | None = None
        self._staged_places: BlockTable | None = None
        self._table: BlockTable | None = None
        self._allocations: dict[int, tuple[int, int]] = {}
        self._offsets = numpy.zeros(0, numpy.uint64)  # of all blocks
        self._saved = numpy.zeros((0, SUMS), numpy.uint64)  # the hashes of the bytes of each that were saved last
        self._is_saved = numpy.zeros(0, bool)
        self._is_expected = numpy.zeros(0, bool)  # announced, and not copied yet
        self._staged = numpy.zeros(0, numpy.int64)  # numbers of blocks
        self._staged_at = numpy.zeros(0, numpy.int64)  # the place of each
        self._staged_hashes = numpy.zeros((0, SUMS), numpy.uint64)
        self._changing = numpy.zeros(0, numpy.int64)  # numbers of the blocks that had changed when the copies were prepared

    def _look(self) -> None:
        """Note the blocks of the arena's allocations; what is saved of those that remain stays saved."""
        if self._table and self._allocations == self._memory.allocations:
            return
        self._allocations = dict(self._memory.allocations)
        places = sorted((offset, offset + size) for offset, (size, _) in self._allocations.items())
        offsets = [at for first, end in places for at in range(first, end, BLOCK_BYTES)]
        before, old = self._offsets, (self._saved, self._is_saved, self._is_expected)
        self._offsets = numpy.array(offsets, numpy.uint64)
        self._saved = numpy.zeros((len(offsets), SUMS), numpy.uint64)
        self._is_saved, self._is_expected = (numpy.zeros(len(offsets), bool) for _ in range(2))
        _, here, there = numpy.intersect1d(self._offsets, before, return_indices=True)
        for new, each in zip((self._saved, self._is_saved, self._is_expected), old, strict=True):
            new[here] = each[there]
        self._expect((int(self._is_expected.sum()) - int(old[2].sum())) * BLOCK_BYTES)  # what is gone will not be copied
        self._changing = numpy.zeros(0, numpy.int64)
        if self._table:
            self._table.close()
        self._table = self._copier.table(self._memory.base + self._offsets)

    def _hashes(self, numbers: Any) -> Any:
        """Hash these blocks in the arena."""
        assert self._table
        self._table.fill(self._memory.base + self._offsets[numbers])
        return self._table.hashes(len(numbers))

    def _differ(self, numbers: Any, now: Any) -> Any:
        """Tell of each block whether its saved bytes have another hash than now."""
        return ~self._is_saved[numbers] | (now != self._saved[numbers]).any(axis=1)

    def _copy(self, numbers: Any, addresses: Any, rate: float = MOST_RATE, sums: int = 0) -> None:
        """Save these blocks from these addresses.  sums: as of Copier.save."""

        def done(index: int, sums: bytes, data: memoryview) -> None:
            number = numbers[index]
            self._is_saved[number] = False
            self._save(int(self._offsets[number]), sums, data)
            self._saved[number], self._is_saved[number] = numpy.frombuffer(sums, numpy.uint64), True

        self._expect(int((~self._is_expected[numbers]).sum()) * BLOCK_BYTES)
        self._is_expected[numbers] = False
        self._copier.save(addresses.tolist(), done, rate=rate, sums=sums)

    def _copy_from_arena(self, numbers: Any, rate: float = MOST_RATE) -> None:
        self._copy(numbers, self._memory.base + self._offsets[numbers], rate)

    def _share_known(self) -> Any:
        """Take the blocks that the store has from an earlier image; return the hashes of all.

        A block may change after this hash: the barrier compares it with the block that was taken, as with a copy."""
        every = numpy.arange(len(self._offsets))
        self._expect(len(every) * BLOCK_BYTES)
        now = self._hashes(every)
        known = [self._share(int(offset), sums.tobytes()) for offset, sums in zip(self._offsets, now, strict=True)]
        self._is_saved = numpy.array(known, bool)
        self._is_expected = ~self._is_saved
        self._saved[self._is_saved] = now[self._is_saved]
        return now

    def prepare(self) -> int:
        """Copy all blocks that no earlier image has, and those that change meanwhile as long as they become fewer.  Those that
        change all the time wait for the barrier, if the GPU has room for them.

        Return the bytes that were dirty at last: about as many are copied at the barrier."""
        self._look()
        every, now, before = numpy.arange(len(self._offsets)), self._share_known(), math.inf
        for _ in range(ROUNDS):
            dirty = every[self._differ(every, now)]
            restless = self._restless(dirty, now[dirty])
            settled = numpy.setdiff1d(dirty, restless, assume_unique=True)
            if not len(settled) or 2 * len(settled) > before:
                break
            self._copy_from_arena(settled)
            if len(dirty) <= len(every) // FEW:
                self._changing = restless
                self._make_room(len(restless) + len(settled) // 2)
                return len(restless) * BLOCK_BYTES
            before, now = len(settled), self._hashes(every)
        self._changing = every[self._differ(every, now)]
        self._make_room(len(self._changing))
        return len(self._changing) * BLOCK_BYTES

    def _restless(self, numbers: Any, before: Any) -> Any:
        """Return those of these blocks that have no longer the hash of before, as far as there is room for their copies on the
        GPU: at the barrier they would have changed again."""
        most = _most_room()
        if most:
            time.sleep(len(numbers) * BLOCK_BYTES / MOST_RATE / WATCH)
            numbers = numbers[(self._hashes(numbers) != before).any(axis=1)]
        return numbers[:most]

    def _make_room(self, blocks: int) -> None:
        """Allocate memory for twice the blocks that are dirty now, as far as the GPU has room to spare."""
        wanted = min(max(2 * blocks, LEAST_ROOM), len(self._offsets) + LEAST_ROOM, _most_room())
        if wanted > 0:
            self._staging = DeviceMemory(wanted * BLOCK_BYTES)
        self._staged_places = self._copier.table(numpy.zeros(wanted, numpy.uint64))

    @property
    def room_bytes(self) -> int:
        """The memory for copies inside the GPU: a barrier with more dirty bytes waits for the host."""
        return self._staging.bytes if self._staging else 0

    def _stage(self, numbers: Any, place: int) -> Any:
        """Copy these blocks inside the GPU to the places from this one on; return the hashes of the copies."""
        if not len(numbers):
            return numpy.zeros((0, SUMS), numpy.uint64)
        assert self._staged_places
        assert self._staging
        self._staged_places.fill(self._memory.base + self._offsets[numbers])
        return self._staged_places.hashes(len(numbers), self._staging.address + place * BLOCK_BYTES)

    def stage(self) -> tuple[int, int]:
        """Make the image that of this moment; the client must not write until this returns.

        Return the bytes that were copied inside the GPU, and those for which it had no room, which went to the host at once.
        Raises ClientWroteError if the client did write."""
        self._look()
        room = self.room_bytes // BLOCK_BYTES
        early = self._changing[:room]  # most likely they have changed again: one pass copies and hashes them
        copies = self._stage(early, 0)
        others = numpy.setdiff1d(numpy.arange(len(self._offsets)), early, assume_unique=True)
        now = self._hashes(others)
        differ = self._differ(others, now)
        changed, now = others[differ], now[differ]
        late, rest = numpy.split(changed, [room - len(early)])
        late_copies = self._stage(late, len(early))
        self._copy_from_arena(rest, math.inf)  # the client waits
        wrong = [
            *early[(self._hashes(early) != copies).any(axis=1)],
            *late[(late_copies != now[: len(late)]).any(axis=1)],
            *rest[(self._saved[rest] != now[len(late) :]).any(axis=1)],
        ]
        if wrong:
            raise ClientWroteError(f"{len(wrong)} blocks changed during the barrier, the first at {self._offsets[wrong[0]]:#x}")
        fresh = numpy.flatnonzero(self._differ(early, copies))
        self._staged = numpy.concatenate([early[fresh], late])
        self._staged_at = numpy.concatenate([fresh, len(early) + numpy.arange(len(late))])
        self._staged_hashes = numpy.concatenate([copies[fresh], late_copies])
        return len(self._staged) * BLOCK_BYTES, len(rest) * BLOCK_BYTES

    def finish(self, rate: float = MOST_RATE) -> None:
        """Copy what was staged to the host, so many bytes a second at most.  Raises OSError if the GPU did not copy it, as
        when it fails.

        The copies do not change, so the hashes of the barrier are theirs.  These go to the GPU and come back behind each
        piece: the GPU has copied what they follow."""
        if len(self._staged):
            assert self._staged_places
            assert self._staging
            sums, hashes = self._staged_places.out.address, self._staged_hashes.tobytes()
            call(driver.cuMemcpyHtoD, sums, hashes, len(hashes))
            self._copy(self._staged, self._staging.address + self._staged_at.astype(numpy.uint64) * BLOCK, rate, sums)
            if (self._saved[self._staged] != self._staged_hashes).any():
                raise OSError("what was copied inside the GPU at the barrier did not come to the host: has the GPU failed?")

    def close(self) -> None:
        for each in (self._staged_places, self._table, self._staging):
            if each:
                each.close()
        self._staged_places = self._table = self._staging = None
