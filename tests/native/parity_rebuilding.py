"""Rebuild a lost arena of two others on one GPU in several threads: run as a program, `python parity_rebuilding.py DIRECTORY`;
it prints the number of blocks that are right.
"""

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from mpsd.images.blocks import sums_of
from mpsd.images.imager.copier import SLOTS, Copier
from mpsd.images.imager.device import ExportedMemory, Gpu, call
from mpsd.images.imager.rebuilding import RebuiltArena
from mpsd.images.parity import make_parity
from mpsd.images.rules.manifest import BLOCK_BYTES, MemberImage
from mpsd.images.rules.parity import NAMES, parity_facts
from mpsd.images.store import Images
from tests.unit.images.making import block, facts

MEMBERS = ("lost", "near", "far")
BLOCKS = SLOTS  # one for each thread
SECONDS = 20.0  # for all threads; they need less than one

every_thread = threading.Barrier(BLOCKS)
mine = threading.local()
fetch = Copier.fetch


def fetch_at_once(self: Copier, addresses: Sequence[int]) -> AbstractContextManager[Any]:
    """Let each thread have a block of one arena before any thread asks for one of the other."""
    if getattr(mine, "has_fetched", False):
        every_thread.wait(SECONDS)
    mine.has_fetched = True
    return fetch(self, addresses)


def content(member: int, number: int) -> bytes:
    return block(100 * member + number)


def take(images: Images) -> None:
    hash_of, parity = images.directory.hash_of, bytearray(BLOCK_BYTES)
    arenas = [facts(*range(BLOCKS), name=name) for name in MEMBERS]
    with images.begin("p", "g") as new:
        for number in range(BLOCKS):
            make_parity([content(member, number) for member in range(len(MEMBERS))], parity)
            new.add(NAMES[0], number * BLOCK_BYTES, parity)
        sums = [[sums_of(content(member, at), hash_of.block_key) for at in range(BLOCKS)] for member in range(len(MEMBERS))]
        members = [MemberImage(arena, b"".join(map(hash_of.name_of, those))) for arena, those in zip(arenas, sums, strict=True)]
        new.finish(1.0, [parity_facts(NAMES[0], arenas)], members=members)


def main(directory: Path) -> None:
    images = Images.open(directory)
    take(images)
    call(driver.cuInit, 0)
    uuid = bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex()
    gpu = Gpu(uuid)
    gpu.set_current()
    arena = RebuiltArena(images.reader("p"), "lost", images.directory.hash_of)
    for member, name in enumerate(MEMBERS[1:], 1):
        memory = ExportedMemory(gpu.number, BLOCKS * BLOCK_BYTES)
        for number in range(BLOCKS):
            call(driver.cuMemcpyHtoD, memory.address + number * BLOCK_BYTES, content(member, number), BLOCK_BYTES)
        arena.add(name, {"gpu": uuid, "window_bytes": BLOCKS * BLOCK_BYTES})
        arena.add_memory(name, [(0, BLOCKS * BLOCK_BYTES, 1)], [memory.export()])
    Copier.fetch = fetch_at_once  # type: ignore[assignment]
    right = []

    def rebuild(number: int) -> None:
        found = bytearray(BLOCK_BYTES)
        arena.read(number * BLOCK_BYTES, memoryview(found))
        if found == content(0, number):
            right.append(number)

    threads = [threading.Thread(target=rebuild, args=(number,), daemon=True) for number in range(BLOCKS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS)
        if each.is_alive():
            break
    print(len(right), flush=True)
    os._exit(0)  # a thread that is stuck would not let it end


if __name__ == "__main__":
    main(Path(sys.argv[1]))
