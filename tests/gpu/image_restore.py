"""Restore an image in several ways, and time them. Prints JSON lines.

    image_restore.py BYTES DIRECTORY TRIALS    take an image of so many bytes, all blocks different; restore it as a program
                                               does; read, and copy to the GPU, alone; restore it with other constants
"""

import ctypes
import itertools
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cuda.bindings import driver
from mpsd_client import Arena, Client, Layout, TensorSpec, calls, restore_arena

from mpsd.images.imager import restoring
from mpsd.images.imager.device import ExportedMemory, Gpu, PinnedMemory, call, make_stream, prepare
from mpsd.images.imager.filling import PIECE_BLOCKS, Filling
from mpsd.images.imager.lanes import BUFFER_BYTES, Lanes
from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES, block_offsets
from mpsd.images.store import Images
from mpsd.native import ffi, lib

START = Path(__file__).with_name("imager_start.py")
BLOCK = 2 << 20
IMAGE = "measured"
BUFFERS = int(lib.MPSD_LANE_BUFFERS)
THREADS = (8, 12, 16)
BUFFER_KIB = (256, 512, 1024, 2048)
PIECES = (1, 2, 8)  # blocks, with the product's other constants
SAMPLES = 64
READ_BYTES = 512 << 10  # at a time, by reading alone


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def take(size: int, directory: Path) -> None:
    """Take an image whose blocks are all different: equal ones are stored once, and would be read from the cache."""
    with Arena.create("measured", size) as arena:
        block = arena.allocate(size)
        for number in range(size // BLOCK):
            call(driver.cuMemsetD32Async, block.address + number * BLOCK, number + 1, BLOCK // 4, 0)
        call(driver.cuCtxSynchronize)
        eighth = size // 8 // BLOCK * BLOCK
        parts = {"first": BLOCK, "eighth": eighth}
        arena.commit(Layout({name: TensorSpec(block.offset, "uint8", (each,), (1,)) for name, each in parts.items()}))
        began = time.monotonic()
        taking = arena.image(IMAGE, directory)
        taking.barrier()
        image = taking.wait()
        say("taken", seconds=time.monotonic() - began, new_bytes=image.new_bytes)
    with Client() as mpsd:
        mpsd.ask(calls.arena_remove("measured"))


def restore(directory: Path) -> None:
    """Restore as a program does, which waits for the first block, the first eighth, and all."""
    began, ends = time.monotonic(), {}
    with restore_arena(IMAGE, "restored", ["first", "eighth"], directory=directory) as arena:
        for name, wanted in (("opened", None), ("first", ["first"]), ("eighth", ["eighth"]), ("all", [])):
            if wanted is not None:
                arena.ready(*wanted)
            ends[f"{name}_s"] = time.monotonic() - began
        [block] = arena.blocks()
        count = block.bytes // BLOCK
        places = {count * each // SAMPLES for each in range(SAMPLES)}
        right = all(
            arena.copy_out(block.address + each * BLOCK, BLOCK) == (each + 1).to_bytes(4, "little") * (BLOCK // 4)
            for each in places
        )
    with Client() as mpsd:
        mpsd.ask(calls.arena_remove("restored"))
    say("restored", is_right=right, **ends)


def start(directory: Path, size: int) -> None:
    command = [sys.executable, str(START), str(directory), IMAGE, str(size), str(time.monotonic())]
    print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout, end="", flush=True)


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Return the seconds of the work of all threads."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return time.monotonic() - began


def read_alone(image: ImageReader, count: int, way: str) -> float:
    """Read all blocks to small buffers, by calls, or through a mapping of the packs."""
    files, slots = image.places(0, range(image.manifest.content_bytes // BLOCK_BYTES))
    maps = {file: mmap.mmap(file, 0, prot=mmap.PROT_READ) for file in set(files)} if way == "mapped" else {}
    starts = {file: _address(each) for file, each in maps.items()}
    places: Iterator[tuple[int, int]] = iter(list(zip(files, slots, strict=True)))
    lock = threading.Lock()

    def work(_: int) -> None:
        buffers = itertools.cycle([mmap.mmap(-1, READ_BYTES) for _ in range(4)])
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            for at in range(place[1] * BLOCK, (place[1] + 1) * BLOCK, READ_BYTES):
                buffer = next(buffers)
                if maps:
                    ctypes.memmove(_address(buffer), starts[place[0]] + at, READ_BYTES)
                else:
                    os.preadv(place[0], [buffer], at)

    return in_threads(count, work)


def _address(memory: mmap.mmap) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def copy_alone(gpu: Gpu, to: int, size: int, count: int, kib: int) -> float:
    """Copy as many bytes from as large pinned buffers as the lanes have."""
    buffer = PinnedMemory(count * BUFFERS * kib << 10)
    each = size // count

    def work(number: int) -> None:
        gpu.set_current()
        stream = make_stream()
        for at in range(0, each, kib << 10):
            place = (number * BUFFERS + at // (kib << 10) % BUFFERS) * (kib << 10)
            call(driver.cuMemcpyHtoDAsync, to + number * each + at, buffer.address + place, min(kib << 10, each - at), stream)
        call(driver.cuStreamSynchronize, stream)

    seconds = in_threads(count, work)
    buffer.close()
    return seconds


def fill(gpu: Gpu, image: ImageReader, key: bytes, to: int, count: int, kib: int, piece: int, trials: int) -> None:
    """Fill the GPU's memory with these constants."""
    began = time.monotonic()
    ways = Lanes(gpu, key, count, kib << 10)
    ways.make_buffers()
    made = time.monotonic() - began
    offsets = block_offsets(image.manifest.arenas[0].facts)
    blocks = [(offset, to + number * BLOCK) for number, offset in enumerate(offsets)]
    seconds = []
    for _ in range(trials):
        there: list[int] = []
        began = time.monotonic()
        assert Filling(image, 0, blocks, range(len(blocks)), there.extend, lambda: True, piece).run(gpu, ways.lanes)
        seconds.append(time.monotonic() - began)
        assert len(there) == len(blocks)
    say("filled", threads=count, kib=kib, blocks=piece, made_s=made, seconds=seconds)


def main(size: int, directory: Path, trials: int) -> None:
    prepare()
    gpu = Gpu(bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex())
    gpu.set_current()
    take(size, directory)
    for _ in range(trials):
        restore(directory)
        start(directory, size)
    images = Images.open_existing(directory)
    image = images.reader(IMAGE)
    memory = ExportedMemory(gpu.number, size)
    for count in THREADS:
        for way in ("read", "mapped"):
            say("read", threads=count, way=way, seconds=[read_alone(image, count, way) for _ in range(trials)])
    for kib in (BUFFER_BYTES >> 10, 2048):
        seconds = [copy_alone(gpu, memory.address, size, restoring.THREADS, kib) for _ in range(trials)]
        say("copied", threads=restoring.THREADS, kib=kib, seconds=seconds)
    constants = [(count, kib, PIECE_BLOCKS) for count in THREADS for kib in BUFFER_KIB]
    constants += [(restoring.THREADS, BUFFER_BYTES >> 10, piece) for piece in PIECES]
    for each in constants:
        fill(gpu, image, images.directory.hash_of.block_key, memory.address, *each, trials)
    say("end")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
