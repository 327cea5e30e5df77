"""A lost arena, made from its image's parity and the other members' memory.

Prose: docs/images.md, "Parity of arenas on several GPUs".
"""

import mmap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from mpsd.errors import BadRequest, MpsdError
from mpsd.images.blocks import sums_of
from mpsd.images.imager.copier import Copier
from mpsd.images.imager.device import ArenaMemory, Gpu
from mpsd.images.imager.stripes import Copied, Member, read_stripes
from mpsd.images.parity import combine, make_parity
from mpsd.images.reader import ImageReader
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import BLOCK_BYTES, BlockNumbers, MemberImage, block_offsets
from mpsd.images.rules.parity import factors
from mpsd.images.rules.refusals import ImageDamaged


class RebuiltArena:
    """Guards that each block that it gives is as it was at the image's moment."""

    def __init__(self, image: ImageReader, arena: str, hash_of: BlockHash) -> None:
        """Raise BadRequest if the image has parity of other arenas only."""
        self._image, self._hash_of = image, hash_of
        members = {each.facts.name: each for each in image.manifest.members}
        if arena not in members:
            raise BadRequest(f"image {image.manifest.name} has the parity of {', '.join(members)}: name the one that is lost")
        self._order = list(members)  # the first block of a stripe counts once in Q, the next twice
        self._spare = len(image.manifest.arenas) - 1  # so many blocks may be missing in addition
        self._lost = _Hashes(members.pop(arena))
        self.facts = self._lost.facts
        self._hashes = {name: _Hashes(each) for name, each in members.items()}
        self._memory: dict[str, Member] = {}  # of the other members
        self._why = dict.fromkeys(members, "its memory is missing")

    @property
    def others(self) -> list[str]:
        return list(self._hashes)

    def add(self, arena: str, asked: Mapping[str, Any]) -> None:
        """Note where another member's memory is; asked has `gpu` and `window_bytes`, or `why` it is missing."""
        if "why" in asked:
            self._why[arena] = str(asked["why"])
            return
        try:
            gpu = Gpu(asked["gpu"])
        except LookupError as exc:  # a lost GPU, as that of the arena itself
            self._why[arena] = str(exc)
            return
        gpu.set_current()
        # One for each member: after a rebuild two of them can be on one GPU. If they shared a copier, threads that each hold a
        # place in it would all wait for a second one.
        copier = Copier(gpu, self._hash_of.block_key)
        self._memory[arena] = Member(gpu, copier, ArenaMemory(gpu.number, asked["window_bytes"]))

    def add_memory(self, arena: str, items: Sequence[Sequence[int]], descriptors: Sequence[int]) -> None:
        member = self._memory.get(arena)
        if member is None:  # it cannot be had
            return
        member.gpu.set_current()
        for (offset, size, since), descriptor in zip(items, descriptors, strict=True):
            member.memory.add(offset, size, since, descriptor)

    def read(self, offset: int, into: memoryview) -> None:
        """Rebuild the block at this offset.

        Raise ImageDamaged if too many of the other members' blocks are missing or have changed, or parity is damaged.
        """
        names = [name for name in self._memory if offset in self._offsets[name]]
        with read_stripes([self._memory[name] for name in names], [[offset]] * len(names)) as found:
            self._rebuild(offset, {name: blocks[offset] for name, blocks in zip(names, found, strict=True)}, into)

    def _rebuild(self, offset: int, there: Mapping[str, Copied], into: memoryview) -> None:
        blocks: list[memoryview | None] = [None] * len(self._order)
        bad: dict[int, str] = {}
        for name, hashes in self._hashes.items():
            if offset not in hashes.offsets:
                continue  # it had no block there: zeros
            sums, data = there.get(name, (b"", None))
            if data is not None and self._hash_of.name_of(sums) == hashes.id(offset):
                blocks[self._order.index(name)] = data
            else:
                changed = f"arena {name} has changed there since the image was taken"
                bad[self._order.index(name)] = changed if name in self._memory else f"arena {name} is needed: {self._why[name]}"
        why = self._read_parity(0, offset, into)
        if not bad and not why:
            make_parity([into, *blocks], into)
        elif len(bad) + bool(why) > self._spare:
            raise self._cannot(offset, "; ".join([*bad.values(), *([why] if why else [])]))
        else:
            self._rebuild_with_second(offset, blocks, next(iter(bad), None), into)
        if self._hash_of.name_of(sums_of(into, self._hash_of.block_key)) != self._lost.id(offset):
            raise self._cannot(offset, "what comes of the parity has another hash than the arena had")

    def _rebuild_with_second(self, offset: int, blocks: Sequence[memoryview | None], other: int | None, p: memoryview) -> None:
        """Rebuild a block in `p`, which has P or, if that is damaged, anything.  other: the number of another missing block."""
        with ExitStack() as stack:
            memory = [memoryview(stack.enter_context(mmap.mmap(-1, BLOCK_BYTES))) for _ in range(3)]
            for each in memory:
                stack.callback(each.release)
            q, of_p, of_q = memory
            if why := self._read_parity(1, offset, q):
                raise self._cannot(offset, why)
            make_parity(blocks, of_p, of_q)
            make_parity([p, of_p], p)
            make_parity([q, of_q], q)
            combine(factors(self._order.index(self.facts.name), other), p, q, p)

    def _read_parity(self, number: int, offset: int, into: memoryview) -> str:
        """Return why it cannot be read."""
        try:
            self._image.read_into(number, offset, into)
        except ImageDamaged as exc:
            return str(exc).partition(f"{offset:#x}: ")[2] or str(exc)
        return ""

    @cached_property
    def _offsets(self) -> dict[str, set[int]]:
        """Of the blocks that the other members have now; when the first block is read, all memory is there."""
        return {name: member.offsets() for name, member in self._memory.items()}

    def _cannot(self, offset: int, why: str) -> MpsdError:
        return ImageDamaged(
            f"image {self._image.manifest.name}, arena {self.facts.name}, offset {offset:#x}: it cannot be rebuilt: {why}"
        )


class _Hashes:
    """The hashes of a member's blocks, by offset."""

    def __init__(self, member: MemberImage) -> None:
        self.facts, self._member, self._numbers = member.facts, member, BlockNumbers(member.facts)
        self.offsets = set(block_offsets(member.facts))

    def id(self, offset: int) -> bytes:
        return self._member.id(self._numbers.number(offset))
