"""Read the blocks of an image, and check that they are those that were written."""

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct

from mpsd.errors import BadRequest
from mpsd.images.blocks import read_block
from mpsd.images.directory import Held, ImageDirectory
from mpsd.images.pack import Pack
from mpsd.images.rules.block_hash import Bytes
from mpsd.images.rules.manifest import (
    BLOCK_BYTES,
    BlockNumbers,
    BlockPlace,
    block_offsets,
    check_has_blocks,
    read_places,
)
from mpsd.images.rules.refusals import ImageDamaged


class Damage(Struct, frozen=True):
    """A block that is not as it was written, or cannot be read."""

    image: str
    arena: str
    offset: int
    why: str


class ImageReader:
    """An open image: its blocks stay while it is open, also if the image is removed.  Owns the descriptors.

    Threads can read at the same time.
    """

    def __init__(self, directory: ImageDirectory, held: Held) -> None:
        self._directory = directory
        self._descriptor = held.descriptor
        self.manifest = held.manifest
        self._numbers = [BlockNumbers(each.facts) for each in held.manifest.arenas]
        self._packs: dict[int, Pack] = {}
        self._lock = threading.Lock()  # protects _packs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the blocks.  No thread reads any more."""
        for each in self._packs.values():
            each.close()
        self._packs.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def arena(self, name: str | None = None) -> int:
        """Return the number of the arena of that name; None: of the only one.  Raise BadRequest."""
        check_has_blocks(self.manifest)
        names = [each.facts.name for each in self.manifest.arenas]
        if name is None and len(names) > 1:
            raise BadRequest(f"image {self.manifest.name} has the arenas {', '.join(names)}: choose one")
        if name is not None and name not in names:
            raise BadRequest(f"image {self.manifest.name} has no arena {name}, but {', '.join(names)}")
        return 0 if name is None else names.index(name)

    def read_into(self, arena: int, offset: int, into: Bytes) -> None:
        """Read the block at the offset, and compare its hash.  Raise ImageDamaged, BadRequest."""
        image, number = self.manifest.arenas[arena], self._numbers[arena].number(offset)
        place, hash_of = image.place(number), self._directory.hash_of
        if memoryview(into).nbytes != BLOCK_BYTES:
            raise BadRequest(f"a block is read into {BLOCK_BYTES} bytes, not {memoryview(into).nbytes}")
        try:
            sums = read_block(self._pack(place.pack).descriptor, place.slot, into, hash_of.block_key)
            if not self.is_block(arena, number, sums):
                raise ImageDamaged(f"the bytes in pack {place.pack}, slot {place.slot} are not those that were written")
        except ImageDamaged as exc:
            why = str(exc)
        except OSError as exc:
            why = f"pack {place.pack}, slot {place.slot}: {exc.strerror}"
        else:
            return
        raise ImageDamaged(f"image {self.manifest.name}, arena {image.facts.name}, offset {offset:#x}: {why}")

    def is_block(self, arena: int, number: int, sums: bytes) -> bool:
        """Return whether the block of this number has these sums."""
        return self._directory.hash_of.name_of(sums) == self.manifest.arenas[arena].place(number).id

    def places(self, arena: int, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the descriptor of the pack of each of these blocks, or -1 if it cannot be opened, and the slot there."""
        packs, slots = self.manifest.arenas[arena].slots(numbers)
        files = {number: self._descriptor_of(number) for number in set(packs)}
        return [files[number] for number in packs], slots

    def _descriptor_of(self, pack: int) -> int:
        try:
            return self._pack(pack).descriptor
        except ImageDamaged:
            return -1

    def verify(self, known: dict[BlockPlace, str], told: Callable[[int], None] = lambda size: None) -> Iterator[Damage]:
        """Read every block, and yield those that are not as they were written.

        known: by place, the result for blocks that were read for other images; "" for a good one.  told: see Images.verify.
        """
        with mmap.mmap(-1, BLOCK_BYTES) as memory, memoryview(memory) as block:
            for number, arena in enumerate(self.manifest.arenas):
                for offset, place in zip(block_offsets(arena.facts), read_places(arena.places), strict=True):
                    if place not in known:
                        known[place] = self._look(number, offset, block)
                        told(BLOCK_BYTES)
                    if known[place]:
                        yield Damage(self.manifest.name, arena.facts.name, offset, known[place])

    def _look(self, arena: int, offset: int, block: memoryview) -> str:
        try:
            self.read_into(arena, offset, block)
        except ImageDamaged as exc:
            return str(exc).rpartition(": ")[2]
        return ""

    def _pack(self, number: int) -> Pack:
        with self._lock:
            if number not in self._packs:
                self._packs[number] = Pack.open(self._directory.packs, number)
            return self._packs[number]
