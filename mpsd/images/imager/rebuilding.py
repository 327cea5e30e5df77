"""A lost arena, made of its image's parity and of the other members' memory.

Prose: docs/images.md, "Parity of arenas on several GPUs".
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from mpsd.errors import BadRequest, MpsdError
from mpsd.images.blocks import sums_of
from mpsd.images.imager.device import ArenaMemory, Gpu
from mpsd.images.imager.stripes import Member, read_stripes
from mpsd.images.imager.taking import Copier
from mpsd.images.parity import xor_blocks
from mpsd.images.reader import ImageReader
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import BlockNumbers, MemberImage, block_offsets
from mpsd.images.rules.refusals import ImageDamaged

_PARITY = 0  # the number of the arena with the parity


class RebuiltArena:
    """Guards that no block is given that is not as it was at the image's moment."""

    def __init__(self, image: ImageReader, arena: str, hash_of: BlockHash) -> None:
        """Raise BadRequest if the image has no parity of this arena."""
        self._image, self._hash_of = image, hash_of
        members = {each.facts.name: each for each in image.manifest.members}
        if arena not in members:
            raise BadRequest(f"image {image.manifest.name} has the parity of {', '.join(members)}: name the one that is lost")
        self._lost = _Hashes(members.pop(arena))
        self.facts = self._lost.facts
        self._hashes = {name: _Hashes(each) for name, each in members.items()}
        self._memory: dict[str, Member] = {}  # of the other members
        self._why = dict.fromkeys(members, "its memory is missing")
        self._copiers: dict[str, Copier] = {}  # by the UUID of the GPU

    @property
    def others(self) -> list[str]:
        return list(self._hashes)

    def add(self, arena: str, asked: Mapping[str, Any]) -> None:
        """Note where another member's memory is; asked has `gpu` and `window_bytes`, or `why` there is none."""
        if "why" in asked:
            self._why[arena] = str(asked["why"])
            return
        gpu = Gpu(asked["gpu"])
        gpu.set_current()
        if asked["gpu"] not in self._copiers:
            self._copiers[asked["gpu"]] = Copier(gpu, self._hash_of.block_key)
        self._memory[arena] = Member(gpu, self._copiers[asked["gpu"]], ArenaMemory(gpu.number, asked["window_bytes"]))

    def add_memory(self, arena: str, items: Sequence[Sequence[int]], descriptors: Sequence[int]) -> None:
        member = self._memory[arena]
        member.gpu.set_current()
        for (offset, size, since), descriptor in zip(items, descriptors, strict=True):
            member.memory.add(offset, size, since, descriptor)

    def read(self, offset: int, into: memoryview) -> None:
        """Rebuild the block at this offset.

        Raise ImageDamaged if another member's block is missing or has changed, or if the parity is damaged.
        """
        self._see_all_there(offset)
        self._image.read_into(_PARITY, offset, into)
        names = [name for name in self._memory if offset in self._hashes[name].offsets]
        with read_stripes([self._memory[name] for name in names], [[offset]] * len(names)) as found:
            for name, blocks in zip(names, found, strict=True):
                if self._hash_of.name_of(blocks[offset][0]) != self._hashes[name].id(offset):
                    raise self._cannot(offset, f"arena {name} has changed there since the image was taken")
            xor_blocks(into, [into, *(blocks[offset][1] for blocks in found)])
        if self._hash_of.name_of(sums_of(into, self._hash_of.block_key)) != self._lost.id(offset):
            raise self._cannot(offset, "what comes of the parity has another hash than the arena had")

    @cached_property
    def _offsets(self) -> dict[str, set[int]]:
        """Of the blocks that the other members have now; when the first block is read, all memory is there."""
        return {name: member.offsets() for name, member in self._memory.items()}

    def _see_all_there(self, offset: int) -> None:
        for name, hashes in self._hashes.items():
            if offset in hashes.offsets:
                if name not in self._memory:
                    raise self._cannot(offset, f"arena {name} is needed: {self._why[name]}")
                if offset not in self._offsets[name]:
                    raise self._cannot(offset, f"arena {name} has no memory there any more")

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
