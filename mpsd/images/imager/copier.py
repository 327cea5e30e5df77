"""Copying blocks to the host: the streams, the buffers and the hash kernel of one GPU.

A hash always belongs to the bytes that were copied (taking.py says how).  Prose: docs/images.md, "Taking an image".
"""

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

from mpsd.images.imager.device import DeviceMemory, Gpu, PinnedMemory, call, make_event, make_stream, upload
from mpsd.images.imager.kernel import BLOCK_BYTES, HashKernel
from mpsd.images.rules.block_hash import SUMS_BYTES

PIECE_BLOCKS = 8  # of a launch: it has to wait until a kernel of the client ends
PARTS = 16  # of a block of a piece: a part for each multiprocessor, so that no kernel of the client waits for a slow one
DMA_BLOCKS = 2  # 4 MiB: a client's copy waits for so much at most
SLOTS = 8
SUMS = SUMS_BYTES // 8
MOST_RATE = 7e9  # bytes a second: a client that needs all of the GPU's memory bandwidth keeps 0.97 of its speed


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
        upload(self._key.address, key, self.stream)
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
            upload(self.table.address, addresses.astype(numpy.uint64).tobytes(), self._copier.stream)

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
