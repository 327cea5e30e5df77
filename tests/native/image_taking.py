"""Take images of memory that a hostile writer changes: run as a program, `python image_taking.py VERB SEED`; it prints JSON.

The writer changes blocks before and after each call of the driver that the imager makes, but not at the barrier.  It works in
the same context, whose work is in one order, so every seed is one order of reads and writes.
"""

import ctypes
import itertools
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from cuda.bindings import driver

from mpsd.images.blocks import sums_of
from mpsd.images.imager import copier as copying
from mpsd.images.imager import taking
from mpsd.images.imager.copier import Copier
from mpsd.images.imager.device import DESCRIPTOR, ArenaMemory, Gpu, call, upload
from mpsd.images.imager.kernel import BLOCK_BYTES
from mpsd.images.imager.taking import ClientWroteError, Taking
from mpsd.images.rules.block_hash import SUMS_BYTES, BlockHash

ALLOCATIONS = ((0, 3), (5, 4))  # first block, blocks
SEEDS = 10
PIECE_BLOCKS = copying.PIECE_BLOCKS = 2  # so that an arena has several
KEY = BlockHash(b"key").block_key
BLOCKS = [block for first, count in ALLOCATIONS for block in range(first, first + count)]


class Client:
    """The process whose arena it is: memory that it writes, and exports."""

    def __init__(self) -> None:
        self.base = int(call(driver.cuMemAddressReserve, 16 * BLOCK_BYTES, 0, 0, 0))
        self.exports = [(first * BLOCK_BYTES, count * BLOCK_BYTES, self._place(first, count)) for first, count in ALLOCATIONS]

    def _place(self, first: int, count: int) -> int:
        made = driver.CUmemAllocationProp()
        made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        made.requestedHandleTypes = DESCRIPTOR
        access = driver.CUmemAccessDesc()
        access.location.type = made.location.type
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        handle = call(driver.cuMemCreate, count * BLOCK_BYTES, made, 0)
        call(driver.cuMemMap, self.base + first * BLOCK_BYTES, count * BLOCK_BYTES, 0, handle, 0)
        call(driver.cuMemSetAccess, self.base + first * BLOCK_BYTES, count * BLOCK_BYTES, [access], 1)
        return int(call(driver.cuMemExportToShareableHandle, handle, DESCRIPTOR, 0))

    def write(self, block: int, word: int, at: int = 0, words: int = BLOCK_BYTES // 4) -> None:
        call(driver.cuMemsetD32, self.base + block * BLOCK_BYTES + 4 * at, word, words)
        call(driver.cuCtxSynchronize)

    def contents(self) -> dict[int, bytes]:
        found, buffer = {}, ctypes.create_string_buffer(BLOCK_BYTES)
        for block in BLOCKS:
            call(driver.cuMemcpyDtoH, ctypes.addressof(buffer), self.base + block * BLOCK_BYTES, BLOCK_BYTES)
            found[block] = buffer.raw
        return found


class HostileWriter:
    """Writes between any two calls of the imager, while it is let."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client, self._random = client, random.Random(seed)
        self.is_let = True
        self.writes = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def hostile(*arguments: Any) -> Any:
            self.act()
            found = function(*arguments)
            self.act()
            return found

        return hostile

    def act(self) -> None:
        """Change some blocks, in part or back to what they were."""
        if not self.is_let or self._random.random() < 0.8:
            return
        for block in self._random.sample(BLOCKS, 2):
            half = self._random.choice((0, BLOCK_BYTES // 8))
            self._client.write(block, self._random.randrange(4), half, BLOCK_BYTES // 8)
            self.writes += 1


class NaiveCopier(Copier):
    """Copies the arena's block to the host and then hashes it in the arena: the hash may be of later bytes than the copy."""

    def _enqueue(self, slot: int, piece: Sequence[int], sums: int = 0) -> None:
        if sums:  # of copies that nobody changes
            super()._enqueue(slot, piece, sums)
            return
        number, queue = slot * PIECE_BLOCKS, self.stream
        for index, address in enumerate(piece):
            to = self._host.address + (number + index) * BLOCK_BYTES
            copying.call(driver.cuMemcpyDtoHAsync, to, address, BLOCK_BYTES, queue)
        table = self.table(taking.numpy.array(piece, taking.numpy.uint64))
        self.hash(table.table.address, len(piece), table.out.address)
        for index in range(len(piece)):
            at = (number + index) * copying.PARTS
            self._host_hashes.view[at * SUMS_BYTES : (at + copying.PARTS) * SUMS_BYTES] = bytes(copying.PARTS * SUMS_BYTES)
            out = self._host_hashes.address + at * SUMS_BYTES
            copying.call(driver.cuMemcpyDtoHAsync, out, table.out.address + index * SUMS_BYTES, SUMS_BYTES, queue)
        copying.call(driver.cuEventRecord, self._copied[slot], queue)


class Scene:
    """A client, and the memory of its arena as the imager has it."""

    def __init__(self, copier: type[Copier] = Copier) -> None:
        call(driver.cuInit, 0)
        gpu = Gpu(bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex())
        gpu.set_current()
        self.client = Client()
        for block in BLOCKS:
            self.client.write(block, block)
        self.memory = ArenaMemory(gpu.number, 16 * BLOCK_BYTES)
        for offset, size, descriptor in self.client.exports:
            self.memory.add(offset, size, 1, descriptor)
        self.copier = copier(gpu, KEY)
        self.saved: dict[int, bytes] = {}
        self.taking = Taking(self.copier, self.memory, self.save)

    def save(self, offset: int, sums: bytes, data: memoryview) -> None:
        self.saved[offset // BLOCK_BYTES] = bytes(data)


def expected_hash(block: bytes) -> tuple[int, ...]:
    """Compute the documented hash, neither on the GPU nor in C."""
    words, keys = numpy.frombuffer(block, numpy.uint32), numpy.frombuffer(KEY, numpy.uint32)
    sums = []
    for shift in (0, 4, 8, 12):
        keyed = (words + keys[shift : shift + len(words)]).astype(numpy.uint64)
        sums.append(int((keyed[::2] * keyed[1::2]).sum(dtype=numpy.uint64)))
    return tuple(sums)


def check_hash(seed: int) -> dict[str, Any]:
    """Compare the kernel's hashes with those computed on the CPU, and let one bit and two swapped words change them."""
    first, second, third, *_ = BLOCKS
    scene = Scene()
    fill = random.Random(seed).randbytes(BLOCK_BYTES)
    swapped = fill[4:8] + fill[:4] + fill[8:]
    flipped = bytes([fill[0] ^ 1]) + fill[1:]
    for block, data in ((first, fill), (second, swapped), (third, flipped)):
        call(driver.cuMemcpyHtoD, scene.client.base + block * BLOCK_BYTES, data, BLOCK_BYTES)
    call(driver.cuCtxSynchronize)
    addresses = scene.memory.base + taking.numpy.array([first, second, third], taking.numpy.uint64) * taking.BLOCK
    found = [tuple(map(int, row)) for row in scene.copier.table(addresses).hashes(3)]
    assert [sums_of(data, KEY) for data in (fill, swapped, flipped)] == [struct.pack("=4Q", *row) for row in found]
    return {"right": found == [expected_hash(data) for data in (fill, swapped, flipped)], "different": len(set(found))}


def hostile(seed: int, copier: type[Copier] = Copier, spare: int = 4) -> dict[str, Any]:
    """Take images of some seeds in a row, and count the blocks that are not those of the barrier."""
    taking.SPARE = spare
    scene = Scene(copier)
    hash_blocks = scene.copier.hash
    sums = dict.fromkeys(("wrong", "staged", "direct", "writes"), 0)
    for number in range(seed, seed + SEEDS):
        writer = HostileWriter(scene.client, number)
        copying.call = writer.around(call)
        copying.upload = taking.upload = writer.around(upload)
        scene.copier.hash = writer.around(hash_blocks)  # type: ignore[method-assign]
        image = Taking(scene.copier, scene.memory, scene.save)
        image.prepare()
        writer.is_let = False
        expected = scene.client.contents()
        staged, direct = image.stage()
        writer.is_let = True
        image.finish()
        wrong = sum(scene.saved[block] != expected[block] for block in BLOCKS)
        for name, value in (("wrong", wrong), ("staged", staged), ("direct", direct), ("writes", writer.writes)):
            sums[name] += value
    return sums


def naive(seed: int) -> dict[str, Any]:
    return hostile(seed, NaiveCopier)


def no_room(seed: int) -> dict[str, Any]:
    return hostile(seed, spare=1)  # all of the free memory is left to others


def write_at_the_barrier(_: int) -> dict[str, Any]:
    scene = Scene()
    scene.taking.prepare()
    scene.client.write(BLOCKS[0], 99)
    hash_blocks = scene.copier.hash

    def broken(table: int, count: int, out: int, to: int = 0, parts: int = 1) -> None:
        if to:  # what has changed is copied
            scene.client.write(BLOCKS[0], 100)
        hash_blocks(table, count, out, to, parts)

    scene.copier.hash = broken  # type: ignore[method-assign]
    try:
        scene.taking.stage()
    except ClientWroteError as exc:
        return {"refused": str(exc)}
    return {"refused": ""}


def write_what_kept_changing(seed: int) -> dict[str, Any]:
    """Write a block that was expected to have changed, and is copied without a look, right after its copy."""
    scene = Scene()
    scene.taking.prepare()
    scene.taking._changing = taking.numpy.arange(len(BLOCKS))
    scene.taking._make_room(len(BLOCKS))
    scene.client.write(BLOCKS[0], 99)
    hash_blocks, written = scene.copier.hash, BLOCKS[seed]

    def broken(table: int, count: int, out: int, to: int = 0, parts: int = 1) -> None:
        hash_blocks(table, count, out, to, parts)
        if to:
            call(driver.cuStreamSynchronize, scene.copier.stream)
            scene.client.write(written, 100)

    scene.copier.hash = broken  # type: ignore[method-assign]
    try:
        staged, _ = scene.taking.stage()
    except ClientWroteError as exc:
        return {"refused": str(exc)}
    return {"refused": "", "staged": staged}


def early(_: int) -> dict[str, Any]:
    """Expect all blocks to change; one does.  Only that one is staged, with the bytes of the barrier."""
    scene = Scene()
    scene.taking.prepare()
    scene.taking.close()
    scene.taking._changing = taking.numpy.arange(len(BLOCKS))
    scene.taking._make_room(len(BLOCKS))
    scene.taking._table = scene.copier.table(scene.memory.base + scene.taking._offsets)
    scene.client.write(BLOCKS[3], 99)
    expected = scene.client.contents()
    staged, _ = scene.taking.stage()
    scene.client.write(BLOCKS[3], 100)
    scene.taking.finish()
    return {"staged": staged // BLOCK_BYTES, "wrong": sum(scene.saved[block] != expected[block] for block in BLOCKS)}


def restless(_: int) -> dict[str, Any]:
    """Change some blocks all the time: they are copied once, after the barrier and without a kernel, and expected once."""
    driver.cuMemcpyHtoD = None  # may return before the GPU has the bytes: the imager's kernels would not wait
    scene = Scene()
    expected_bytes: list[int] = []
    image = Taking(scene.copier, scene.memory, scene.save, expected_bytes.append)
    hash_blocks, changing, words = scene.copier.hash, BLOCKS[:4], itertools.count(100)

    def busy(table: int, count: int, out: int, to: int = 0, parts: int = 1) -> None:
        for block in changing:
            scene.client.write(block, next(words))
        hash_blocks(table, count, out, to, parts)

    scene.copier.hash = busy  # type: ignore[method-assign]
    image.prepare()
    copied, scene.copier.hash = sorted(scene.saved), hash_blocks  # type: ignore[method-assign]
    expected = scene.client.contents()
    staged, direct = image.stage()
    scene.copier.hash = busy  # type: ignore[method-assign]
    before = next(words)
    image.finish()
    return {
        "copied": copied == BLOCKS[4:],
        "kernels": next(words) - before - 1,
        "staged": staged // BLOCK_BYTES,
        "direct": direct,
        "expected": sum(expected_bytes) // BLOCK_BYTES,
        "right": scene.saved == expected,
    }


def freed(_: int) -> dict[str, Any]:
    """Free an allocation with blocks that wait for the barrier: they are expected no more."""
    scene = Scene()
    expected_bytes: list[int] = []
    image = Taking(scene.copier, scene.memory, scene.save, expected_bytes.append)
    hash_blocks, words = scene.copier.hash, itertools.count(100)
    first, _ = ALLOCATIONS[0]

    def busy(table: int, count: int, out: int, to: int = 0, parts: int = 1) -> None:
        scene.client.write(first, next(words))
        hash_blocks(table, count, out, to, parts)

    scene.copier.hash = busy  # type: ignore[method-assign]
    image.prepare()
    scene.copier.hash = hash_blocks  # type: ignore[method-assign]
    scene.memory.keep([each for each in scene.memory.allocations.items() if each[0] != first * BLOCK_BYTES])
    image.stage()
    image.finish()
    return {"expected": sum(expected_bytes) // BLOCK_BYTES, "saved": len(scene.saved), "all": len(BLOCKS)}


def fail(_: int) -> dict[str, Any]:
    """Let the store fail, then a call of the driver; report the slots that are free then, and the next image."""
    scene = Scene()
    found: dict[str, Any] = {}
    copies = itertools.count(1)

    def full(offset: int, sums: bytes, data: memoryview) -> None:
        time.sleep(0.1)  # so that pieces are under way when the error is there
        raise OSError("the disk is full")

    def broken(function: Callable[..., Any], *arguments: Any) -> Any:
        if function is driver.cuMemcpyDtoHAsync and next(copies) == -(-len(BLOCKS) // PIECE_BLOCKS):  # that of the last piece
            raise OSError("the context is lost")
        return call(function, *arguments)

    for what, save, used in (("store", full, call), ("driver", lambda *_: time.sleep(0.1), broken)):
        copying.call = used
        try:
            Taking(scene.copier, scene.memory, save).prepare()
        except OSError as exc:
            found[what] = [str(exc), scene.copier._free.qsize()]
    copying.call = call
    scene.taking.prepare()
    return found | {"saved": len(scene.saved)}


def shared(_: int) -> dict[str, Any]:
    """Take an image of which the store has all blocks but one, and another changes before the barrier."""
    scene = Scene()
    new, changed, *_others = BLOCKS
    asked: dict[int, bytes] = {}

    def share(offset: int, sums: bytes) -> bool:
        asked[offset // BLOCK_BYTES] = sums
        return offset // BLOCK_BYTES != new

    image = Taking(scene.copier, scene.memory, scene.save, share=share)
    taking.FEW = len(BLOCKS)
    hashes_of, looks = image._hashes, list[int]()
    image._hashes = lambda numbers: looks.append(len(numbers)) or hashes_of(numbers)  # type: ignore[method-assign,func-returns-value]
    image.prepare()
    copied, looks_at_all = sorted(scene.saved), looks.count(len(BLOCKS))
    scene.client.write(changed, 99)
    expected = scene.client.contents()
    image.stage()
    image.finish()
    right = all(scene.saved[block] == expected[block] for block in scene.saved)
    unchanged = [block for block in BLOCKS if block != changed]
    hashes = all(asked[block] == struct.pack("=4Q", *expected_hash(expected[block])) for block in unchanged)
    saved = sorted(scene.saved) == sorted([new, changed])
    return {"copied": copied == [new], "looks_at_all": looks_at_all, "saved": saved, "right": right, "hashes": hashes}


def lose_what_was_staged(_: int) -> dict[str, Any]:
    """Let the GPU fail after the barrier without a word: its copies do nothing, and leave what a slot of the ring had."""
    scene = Scene()
    scene.taking.prepare()
    for block in BLOCKS:
        scene.client.write(block, 50 + block)
    scene.taking.stage()

    def failed(function: Callable[..., Any], *arguments: Any) -> Any:
        return None if function is driver.cuMemcpyDtoHAsync else call(function, *arguments)

    copying.call = failed
    scene.copier.hash = lambda *_: None  # type: ignore[assignment,method-assign]
    try:
        scene.taking.finish()
    except OSError as exc:
        return {"refused": str(exc)}
    return {}


VERBS = {"lost": lose_what_was_staged, "shared": shared}
VERBS |= {"fail": fail, "hash": check_hash, "hostile": hostile, "naive": naive, "no_room": no_room}
VERBS |= {"barrier": write_at_the_barrier, "changing": write_what_kept_changing, "early": early, "restless": restless}
VERBS |= {"freed": freed}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](int(sys.argv[2]))))
