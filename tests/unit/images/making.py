"""Images made of numbers: block n of an arena has the same bytes everywhere."""

import random
from collections.abc import Mapping
from pathlib import Path

from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts, Manifest
from mpsd.images.store import Images

FIRST = {0: 10, 1: 11, 7: 12}  # what many tests take first
Contents = Mapping[int, int]  # by the number of the block in the window: what is in it


def block(content: int) -> bytes:
    return random.Random(content).randbytes(64) * (BLOCK_BYTES // 64)


def facts(*blocks: int, name: str = "model", **more: object) -> ArenaFacts:
    """Return an arena with one allocation for each of these blocks of its window."""
    places = tuple((each * BLOCK_BYTES, BLOCK_BYTES) for each in blocks)
    return ArenaFacts(name, "GPU-1", 1 << 45, 64 * BLOCK_BYTES, 64 * BLOCK_BYTES, places, **more)  # type: ignore[arg-type]


def take(images: Images, name: str, contents: Contents, instant: float = 1.0, arena: str = "model") -> Manifest:
    with images.begin(name) as new:
        for place, content in contents.items():
            new.add(arena, place * BLOCK_BYTES, block(content))
        return new.finish(instant, [facts(*sorted(contents), name=arena)])


def contents_of(images: Images, name: str) -> dict[int, bytes]:
    """Read all blocks of the first arena, with their hashes checked."""
    found = {}
    into = bytearray(BLOCK_BYTES)
    with images.reader(name) as image:
        for offset, size in image.manifest.arenas[0].facts.allocations:
            for at in range(offset, offset + size, BLOCK_BYTES):
                image.read_into(0, at, into)
                found[at // BLOCK_BYTES] = bytes(into)
    return found


def expected(contents: Contents) -> dict[int, bytes]:
    return {place: block(content) for place, content in contents.items()}


def stored_blocks(images: Images) -> int:
    return images.directory.stored_bytes() // BLOCK_BYTES


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
