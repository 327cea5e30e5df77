"""Which parity protects which blocks.  Pure.  Prose: docs/images.md, "Parity of arenas on several GPUs"."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mpsd.errors import BadRequest
from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts, block_offsets

NAMES = ("P", "Q")  # of the arenas that have a stripe's parity at the offset of the stripe
MOST_MEMBERS = 255  # so many different powers of 2 has the field
_POLYNOMIAL = 0x11D


def check_gpus(gpus: Sequence[str], parity: int) -> None:
    """Raise BadRequest if the loss of one GPU could take two blocks of a stripe.

    gpus: of the members, as UUIDs.  parity: for so many lost GPUs."""
    if parity not in (1, 2):
        raise BadRequest(f"parity for {parity} lost GPUs; accepted: 1 or 2")
    if not 2 <= len(gpus) <= MOST_MEMBERS:
        raise BadRequest(f"parity needs two arenas, on two GPUs, at least, and has {MOST_MEMBERS} at most")
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


def _multiply(one: int, other: int) -> int:
    product = 0
    while other:
        product ^= one if other & 1 else 0
        one = one << 1 ^ (_POLYNOMIAL if one & 0x80 else 0)
        other >>= 1
    return product


def _power(base: int, exponent: int) -> int:
    found = 1
    for _ in range(exponent % 255):  # base^255 = 1
        found = _multiply(found, base)
    return found


def factors(lost: int, other: int | None) -> tuple[int, int]:
    """Return how often the sums of P and of Q make the lost block: those of the parity and of all blocks that are there.

    lost, other: numbers of the members without a block; None: only one is, and P is not there either.
    """
    if other is None:
        return 0, _power(2, -lost)
    inverse = _power(_power(2, lost) ^ _power(2, other), -1)
    return _multiply(_power(2, other), inverse), inverse
