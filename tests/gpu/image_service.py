"""A decoding service of which images are taken, and a process that restores them. Prints JSON lines.

    image_service.py serve COUNT DIRECTORY    the active: so many images in a row, each begun and taken while it decodes
    image_service.py check DIRECTORY          restore each image that a line of the input names, and report its content

A token writes a row of each layer's cache and all of the logits; the record has the token's number.
"""

import hashlib
import json
import os
import sys
import time
from typing import Any

MIB = 1 << 20
WEIGHTS, LAYERS, CACHE, LOGITS = 8 * MIB, 4, 4 * MIB, 2 * MIB  # CACHE: of each layer
ROW = 4096
SERVICE = "decoding"


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def call(name: str, *arguments: Any) -> Any:
    from cuda.bindings import driver

    status, *found = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {status.name}")
    return found[0] if found else None


def use_gpu() -> None:
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))


def digest(arena: Any) -> str:
    """Return a hash of all memory of the arena, with its offsets."""
    whole = hashlib.sha256()
    for block in arena.blocks():
        whole.update(f"{block.offset} {block.bytes} ".encode())
        whole.update(arena.copy_out(block.address, block.bytes))
    return whole.hexdigest()


class Decoder:
    """What the active does to its arena."""

    def __init__(self, term: Any, is_new: bool) -> None:
        self._term = term
        if is_new:
            weights = term.arena.allocate(WEIGHTS)
            for _ in range(LAYERS):
                term.arena.allocate(CACHE)
            term.arena.allocate(LOGITS)
            call("cuMemsetD32", weights.address, 0x3F80, WEIGHTS // 4)
            term.arena.commit(b"weights, caches, logits")
        _, *self._caches, self._logits = sorted(term.arena.blocks(), key=lambda block: block.offset)
        self.token = 0

    def step(self) -> None:
        self.token += 1
        row = self.token * ROW % CACHE
        for number, cache in enumerate(self._caches):
            call("cuMemsetD32Async", cache.address + row, self.token * LAYERS + number, ROW // 4, 0)
        call("cuMemsetD32Async", self._logits.address, self.token, LOGITS // 4, 0)
        call("cuCtxSynchronize")
        self._term.publish(token=self.token)


def serve(count: str, directory: str) -> None:
    from mpsd_client import Service

    service = Service(SERVICE, capacity=64 * MIB, schema={"token": "uint64"})  # before CUDA begins
    use_gpu()
    is_new = service.open().layout is None
    with service.active() as term:
        decoder = Decoder(term, is_new)
        for number in range(int(count)):
            taking = term.arena.image(f"image.{number}", directory)
            while not taking.is_prepared:
                decoder.step()
            taking.barrier()
            expected, token = digest(term.arena), decoder.token
            decoder.step()
            taking.wait()
            say("image", name=f"image.{number}", digest=expected, token=token)
    say("end")


def check(directory: str) -> None:
    from mpsd_client import Arena, Client, StateReader, calls, restore_image

    use_gpu()
    with Client() as mpsd:
        for line in sys.stdin:
            name = line.strip()
            restored = restore_image(mpsd, name, f"restored.{name}", directory=directory).name
            with Arena.open(restored) as arena:
                fetched = arena.fetch_state()
                assert fetched, "the record is missing"
                with StateReader.open(fetched[0]) as reader:
                    record = reader.read()
                assert record is not None
                say("restored", name=name, digest=digest(arena), token=record["token"])
            mpsd.ask(calls.arena_remove(restored))
    say("end")


if __name__ == "__main__":
    {"serve": serve, "check": check}[sys.argv[1]](*sys.argv[2:])
