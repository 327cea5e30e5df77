"""Take images and parity of arenas on two GPUs, in turns, then lose and rebuild one after the other.  Prints JSON lines.

    parity_client.py BYTES TRIALS DIRECTORY     of each arena
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from mpsd_client import Arena, Client, calls, restore_image

from mpsd.images.imager.device import call
from mpsd.images.store import Images

BLOCK = 2 << 20
NAMES = ("parity-0", "parity-1")
SAMPLES = 32  # blocks of each arena that are compared byte for byte; the rebuilding compares the hash of every one


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def fill(arena: Arena, size: int, seed: int) -> None:
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, seed))
    block, chosen = arena.allocate(size), random.Random(seed)
    for at in range(0, size, BLOCK):
        call(driver.cuMemsetD32, block.address + at, chosen.getrandbits(32), BLOCK // 4)
    call(driver.cuCtxSynchronize)
    arena.commit(b"parity")


def sample(arena: Arena) -> list[bytes]:
    [block] = arena.blocks()
    places = random.Random(len(arena.name)).choices(range(block.bytes // BLOCK), k=SAMPLES)
    return [arena.copy_out(block.address + place * BLOCK, BLOCK) for place in places]


def take(arenas: list[Arena], directory: Path, parity: int) -> dict[str, Any]:
    """Take one, alone in the directory; it stays there."""
    with Images.open(directory) as images:
        for name in images.directory.names():
            images.remove(name)
        images.collect()
    began = time.monotonic()
    taking = arenas[0].image("both", directory, arenas[1:], "g", parity=parity)
    while not taking.is_prepared:
        time.sleep(0.001)
    prepared = time.monotonic() - began
    barrier = taking.barrier()
    image = taking.wait()
    total = time.monotonic() - began
    return {"prepared_s": prepared, "stall_ms": barrier.stall_seconds * 1e3, "total_s": total, "stored_bytes": image.new_bytes}


def main(size: int, trials: int, directory: Path) -> None:
    call(driver.cuInit, 0)
    arenas = [Arena.create(name, size, str(gpu)) for gpu, name in enumerate(NAMES)]
    for number, arena in enumerate(arenas):
        fill(arena, size, number)
    take(arenas, directory, 0)  # the imager starts
    for _ in range(trials):
        say("taken", parity=0, **take(arenas, directory, 0))
        say("taken", parity=1, **take(arenas, directory, 1))
    expected = {arena.name: sample(arena) for arena in arenas}
    for arena in arenas:
        arena.close()
    with Client() as mpsd:
        for number in range(trials):
            name = NAMES[number % 2]
            mpsd.ask(calls.arena_remove(name))
            began = time.monotonic()
            restore_image(mpsd, "both", arena=name, directory=directory)
            seconds = time.monotonic() - began
            with Arena.open(name, wait=30.0) as arena:
                say("rebuilt", seconds=seconds, is_right=sample(arena) == expected[name])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
