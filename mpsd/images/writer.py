"""Write an image: each block that no image of the directory has yet, once; the manifest last."""

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from mpsd.errors import BadRequest, NoRoom
from mpsd.images.blocks import sums_of
from mpsd.images.directory import Held, ImageDirectory
from mpsd.images.pack import Pack
from mpsd.images.rules.block_hash import Bytes
from mpsd.images.rules.manifest import (
    BLOCK_BYTES,
    ArenaFacts,
    ArenaImage,
    BlockPlace,
    Manifest,
    MemberImage,
    block_offsets,
    check_facts,
    digest_of,
    later_than,
    write_places,
)
from mpsd.images.rules.membership import Epoch
from mpsd.images.rules.refusals import ImageDamaged


class ImageWriter:
    """Guards that the image exists completely, on the disk, or not at all.  Owns the packs and the descriptors of `held`.

    held: the images that were complete when this one was begun; their blocks are shared, and stay until this one is closed.
    Threads can add blocks at the same time, but not the same block.
    """

    def __init__(
        self, directory: ImageDirectory, name: str, group: str, epoch: Epoch | None, held: Sequence[Held],
        packs: Sequence[Pack], quota_bytes: int | None,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._name = name
        self._group = group
        self._epoch = epoch
        self._held = held
        self._packs = {each.number: each for each in packs}
        self._quota_bytes = quota_bytes
        self._lock = threading.Lock()  # protects what follows; no system call is made under it
        self._places: dict[tuple[str, int], BlockPlace] = {}  # by arena and offset
        self._bad = directory.bad_places()
        self._known = {place.id: place for one in held for place in one.manifest.places() if place not in self._bad}
        self._uses: Counter[tuple[int, int]] = Counter()  # of slots of these packs, by how many blocks
        self._being_written: set[tuple[int, int]] = set()
        self._free: list[tuple[int, int]] = []
        self._slots = 0
        self._room_bytes = self._measure_room()
        self._failure: Exception | None = None
        self._is_open = True
        self._keeps_blocks = False  # a manifest may name them

    def _measure_room(self) -> float:
        """Return how many bytes the quota leaves for this image; infinity without a quota."""
        if self._quota_bytes is None:
            return float("inf")
        return self._quota_bytes - self._directory.stored_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def new_bytes(self) -> int:
        """The bytes of the blocks that no image had before."""
        return len(self._uses) * BLOCK_BYTES

    def add(self, arena: str, offset: int, data: Bytes, sums: bytes = b"") -> None:
        """Store the block at the offset of the arena, instead of the one that was added there before.

        sums: of the block (blocks.py), if the GPU has made them.

        Raise NoRoom: the disk, or the quota.  After any exception the image cannot be finished.
        """
        if memoryview(data).nbytes != BLOCK_BYTES:
            raise BadRequest(f"a block of {memoryview(data).nbytes} bytes at {offset:#x} instead of {BLOCK_BYTES}")
        hash_of = self._directory.hash_of
        place, is_new = self._place((arena, offset), hash_of.name_of(sums or sums_of(data, hash_of.block_key)))
        if not is_new:
            return
        try:
            self._packs[place.pack].write(place.slot, data)
        except BaseException as exc:
            self._failure = exc if isinstance(exc, NoRoom) else BadRequest(f"a block could not be written: {exc}")
            raise
        finally:
            with self._lock:
                self._being_written.discard((place.pack, place.slot))

    def share(self, arena: str, offset: int, block_id: bytes) -> bool:
        """Let the block at the offset be one that the directory, or this image, has; return False if neither has it."""
        with self._lock:
            place = self._known.get(block_id)
            if place is not None:
                self._use((arena, offset), place)
            return place is not None

    def _place(self, where: tuple[str, int], block_id: bytes) -> tuple[BlockPlace, bool]:
        """Choose where the block is; return whether it has to be written there."""
        with self._lock:
            place = self._known.get(block_id)
            is_new = place is None
            if place is None:
                place = BlockPlace(block_id, *self._free_slot())
                self._known[block_id] = place
                self._being_written.add((place.pack, place.slot))
            self._use(where, place)
            return place, is_new

    def _free_slot(self) -> tuple[int, int]:
        """Return the number of a pack, of each in turn, and a slot there."""
        if self._free:
            return self._free.pop()
        if (self._slots + 1) * BLOCK_BYTES > self._room_bytes:
            self._failure = NoRoom(f"the quota of {self._quota_bytes} bytes for images is used up: remove some")
            raise self._failure
        slot, which = divmod(self._slots, len(self._packs))
        self._slots += 1
        return min(self._packs) + which, slot

    def _use(self, where: tuple[str, int], place: BlockPlace) -> None:
        old, self._places[where] = self._places.get(where), place
        if place.pack in self._packs:
            self._uses[place.pack, place.slot] += 1
        if old is not None:
            self._release(old)

    def _release(self, place: BlockPlace) -> None:
        if place.pack not in self._packs:
            return
        at = place.pack, place.slot
        self._uses[at] -= 1
        if not self._uses[at]:
            del self._uses[at]
            del self._known[place.id]
            if at not in self._being_written:
                self._free.append(at)

    def finish(
        self, instant: float, arenas: Sequence[ArenaFacts], origins: Sequence[bytes] = (), members: Sequence[MemberImage] = (),
        *, is_latest: bool = False,
    ) -> Manifest:  # fmt: skip
        """Let the image be complete, with these arenas and their blocks of this instant; return it once the disk has it.

        origins: of each arena, if the image was received (ArenaImage).  members: of which the arenas are the parity.
        is_latest: the image is of now, so later than those of its series, also where the clock was set back since.
        Blocks that were added outside the arenas' allocations are dropped.  Raise BadRequest if a block is missing, or an image
        of the name was finished meanwhile; NoRoom.
        """
        if self._failure is not None:
            raise self._failure
        check_facts(arenas)
        if members:
            check_facts([each.facts for each in members])
        wanted = [(each.name, offset) for each in arenas for offset in block_offsets(each)]
        for arena, offset in wanted:
            if (arena, offset) not in self._places:
                raise BadRequest(f"arena {arena}: the block at {offset:#x} was not added")
        for where in self._places.keys() - set(wanted):
            self._release(self._places.pop(where))
        for pack in self._packs.values():
            pack.sync()
        self._directory.sync_packs()
        with self._directory.locked():
            self._share_with_later()
            manifest = self._manifest(instant, arenas, origins or [b""] * len(arenas), members)
            if is_latest:
                manifest = later_than(manifest, [one.manifest for one in self._held])
            self._directory.write_manifest(manifest, self._room_bytes - self._slots * BLOCK_BYTES)
            self._keeps_blocks = True  # first: whatever fails from here on, no manifest is without its blocks
            self._directory.publish(self._name)
        self.close()
        return manifest

    def _manifest(
        self, instant: float, arenas: Sequence[ArenaFacts], origins: Sequence[bytes], members: Sequence[MemberImage]
    ) -> Manifest:
        places = [[self._places[each.name, offset] for offset in block_offsets(each)] for each in arenas]
        named = zip(arenas, places, origins, strict=True)
        made = tuple(ArenaImage(facts, write_places(each), origin) for facts, each, origin in named)
        digest = digest_of((place for each in places for place in each), self._directory.hash_of)
        return Manifest(self._name, self._group, instant, time.time(), digest, made, self._epoch, tuple(members))

    def _share_with_later(self) -> None:
        """Share blocks with images that were completed since this one was begun.  The directory's lock is held."""
        before, bad = {one.manifest.name for one in self._held}, self._directory.bad_places()
        stored: dict[bytes, BlockPlace] = {}
        for name in self._directory.names():
            if name not in before:
                with suppress(ImageDamaged):
                    stored |= {place.id: place for place in self._directory.read(name).places() if place not in bad}
        for where, place in list(self._places.items()) if stored else ():
            if place.pack in self._packs and place.id in stored:
                self._use(where, stored[place.id])

    def close(self) -> None:
        """Release everything; an image that was not finished leaves nothing, but for blocks that `collect` frees."""
        if not self._is_open:
            return
        self._is_open = False
        for pack in self._packs.values():
            used = sorted(slot for number, slot in self._uses if number == pack.number) if self._keeps_blocks else []
            with suppress(OSError):  # `collect` repeats it
                pack.trim(used)
            pack.close()
        for one in self._held:
            os.close(one.descriptor)
