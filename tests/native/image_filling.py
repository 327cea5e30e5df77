"""Send blocks of an image to a GPU, some of which go wrong: run as a program, `python image_filling.py VERB DIRECTORY`; it
prints JSON: the numbers of the blocks that are done, whether their memory is right, and what was raised.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from mpsd.errors import MpsdError
from mpsd.images.imager import filling
from mpsd.images.imager.device import ExportedMemory, Gpu, call, prepare
from mpsd.images.imager.lanes import Lanes
from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts
from mpsd.images.store import Images
from tests.unit.images.making import flip

BLOCKS, PIECE, THREADS = 21, 4, 3
BAD = 9  # the second block of the third piece
FACTS = ArenaFacts("model", "GPU-0", 0, BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES, ((0, BLOCKS * BLOCK_BYTES),))


def content(number: int) -> bytes:
    return bytes([number + 1, number ^ 0x5A]) * (BLOCK_BYTES // 2)


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.images = Images.open(directory)
        with self.images.begin("image", "", 1) as new:
            for number in range(BLOCKS):
                new.add("model", number * BLOCK_BYTES, content(number))
            new.finish(1.0, [FACTS])
        self.image = self.images.reader("image")
        prepare()
        self.gpu = Gpu(bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex())
        self.gpu.set_current()
        self.memory = ExportedMemory(self.gpu.number, BLOCKS * BLOCK_BYTES)
        self.lanes = Lanes(self.gpu, self.images.directory.hash_of.block_key, THREADS).lanes
        self.done: list[int] = []

    def pack_of(self, number: int) -> tuple[Path, int]:
        place = self.image.manifest.arenas[0].place(number)
        return self.directory / f"packs/{place.pack}", place.slot * BLOCK_BYTES

    def address(self, number: int) -> int:
        return self.memory.address + number * BLOCK_BYTES

    def run(self, is_wanted: Callable[[], bool] = lambda: True, order: Any = range(BLOCKS)) -> dict[str, Any]:
        blocks = [(number * BLOCK_BYTES, self.address(number)) for number in range(BLOCKS)]
        found: dict[str, Any] = {"raised": ""}
        one = filling.Filling(self.image, 0, blocks, order, self.done.extend, is_wanted, PIECE)
        try:
            found["whole"] = one.run(self.gpu, self.lanes)
        except (MpsdError, OSError) as exc:
            found["raised"] = f"{type(exc).__name__}: {exc}"
        buffer = ctypes.create_string_buffer(BLOCK_BYTES)
        for number in self.done:
            call(driver.cuMemcpyDtoH, ctypes.addressof(buffer), self.address(number), BLOCK_BYTES)
            if buffer.raw != content(number):
                found["wrong"] = number
        return found | {"done": sorted(self.done)}


def good(scene: Scene) -> dict[str, Any]:
    return scene.run(order=range(BLOCKS - 1, -1, -1))


def flipped(scene: Scene) -> dict[str, Any]:
    """A bit of the pack differs."""
    pack, at = scene.pack_of(BAD)
    flip(pack, at + 77)
    return scene.run()


def cut_short(scene: Scene) -> dict[str, Any]:
    """The pack ends within the block, and so before those after it."""
    pack, at = scene.pack_of(BAD)
    os.truncate(pack, at + BLOCK_BYTES // 2)
    return scene.run()


def missing(scene: Scene) -> dict[str, Any]:
    pack, _ = scene.pack_of(BAD)
    pack.unlink()
    return scene.run()


def astray(scene: Scene) -> dict[str, Any]:
    """Other bytes arrive in the GPU's memory than the block has on the disk."""
    files, slots = scene.image.places(0, range(BLOCKS))
    slots[BAD] = slots[0]
    scene.image.places = lambda arena, numbers: ([files[each] for each in numbers], [slots[each] for each in numbers])  # type: ignore[method-assign]
    return scene.run()


def unwanted(scene: Scene) -> dict[str, Any]:
    """The starter ends when three pieces are under way."""
    looks = iter([True] * 3)
    return scene.run(lambda: next(looks, False))


VERBS = {each.__name__: each for each in (good, flipped, cut_short, missing, astray, unwanted)}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](Scene(Path(sys.argv[2])))))
