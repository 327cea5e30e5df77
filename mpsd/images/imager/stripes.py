"""Stripes: the blocks at one offset of arenas on different GPUs, read at the same time.

Prose: docs/images.md, "Parity of arenas on several GPUs".
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from mpsd.images.imager.copier import Copier
from mpsd.images.imager.device import ArenaMemory, Gpu
from mpsd.images.imager.kernel import BLOCK_BYTES


class Member(Struct, frozen=True):
    """An arena of which blocks are read.  Threads can read at the same time."""

    gpu: Gpu
    copier: Copier
    memory: ArenaMemory

    def offsets(self) -> set[int]:
        """Return the offsets of its blocks."""
        allocations = self.memory.allocations.items()
        return {at for offset, (size, _) in allocations for at in range(offset, offset + size, BLOCK_BYTES)}


Copied = tuple[bytes, memoryview]  # the sums of a block, and its bytes


@contextmanager
def read_stripes(members: Sequence[Member], offsets: Sequence[Sequence[int]]) -> Iterator[list[dict[int, Copied]]]:
    """Copy blocks of each member to the host; return those of each, by offset.  They last until the end of the context.

    offsets: of the blocks of each member, PIECE_BLOCKS at most.  Raise OSError: the driver's.
    """
    with ExitStack() as stack:
        waits = []
        for member, those in zip(members, offsets, strict=True):  # always in this order: threads wait for places of a copier
            if those:
                member.gpu.set_current()
                waits.append(stack.enter_context(member.copier.fetch([member.memory.base + offset for offset in those])))
            else:
                waits.append(list)
        yield [dict(zip(those, wait(), strict=True)) for those, wait in zip(offsets, waits, strict=True)]
