"""Which parity protects which blocks.  Pure.  Prose: docs/images.md, "Parity of arenas on several GPUs"."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mpsd.errors import BadRequest
from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts, block_offsets

PARITY_NAME = "P"  # of the arena that has a stripe's parity at the offset of the stripe


def check_gpus(gpus: Sequence[str]) -> None:
    """Raise BadRequest if the loss of one GPU could take two blocks of a stripe.  gpus: of the members, as UUIDs."""
    if len(gpus) < 2:
        raise BadRequest("parity needs two arenas, on two GPUs, at least")
    gpu, count = Counter(gpus).most_common(1)[0]
    if count > 1:
        raise BadRequest(f"parity needs each arena on another GPU: {count} of them are on GPU {gpu}")


def parity_facts(name: str, members: Iterable[ArenaFacts]) -> ArenaFacts:
    """Return the facts of an arena that has a block wherever one of the members has one."""
    allocations: list[tuple[int, int]] = []
    for offset in sorted({offset for each in members for offset in block_offsets(each)}):
        if allocations and sum(allocations[-1]) == offset:
            allocations[-1] = (allocations[-1][0], allocations[-1][1] + BLOCK_BYTES)
        else:
            allocations.append((offset, BLOCK_BYTES))
    end = sum(allocations[-1]) if allocations else 0
    return ArenaFacts(name, "", 0, end, end, tuple(allocations))
