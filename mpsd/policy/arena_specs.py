"""What an arena may be asked to be.  Pure.  Whether there is room is asked elsewhere (arena_account.py)."""

from mpsd.arena import GRANULE, WINDOW_UNIT, Arena, ArenaSpec
from mpsd.errors import BadRequest, TooMany
from mpsd.policy.arena_windows import round_up, window_bytes

MOST_CAPACITY_BYTES = 1 << 42
MOST_WINDOW_BYTES = 1 << 43
MOST_READERS = 256


def check_spec(spec: ArenaSpec) -> tuple[int, int]:
    """Its capacity and its window in bytes, in whole units.  Raises BadRequest."""
    if not GRANULE <= spec.capacity_bytes <= MOST_CAPACITY_BYTES:
        raise BadRequest(f"a capacity of {spec.capacity_bytes} bytes; accepted: {GRANULE} to {MOST_CAPACITY_BYTES}")
    capacity = round_up(spec.capacity_bytes, GRANULE)
    window = window_bytes(capacity, spec.window_bytes)
    if not max(capacity, WINDOW_UNIT) <= window <= MOST_WINDOW_BYTES:
        accepted = f"its capacity of {capacity} to {MOST_WINDOW_BYTES}"
        raise BadRequest(f"a window of {window} bytes; accepted: {accepted}")
    return capacity, window


def check_readers(arena: Arena) -> None:
    """Another one comes.  Raises TooMany."""
    if len(arena.readers) >= MOST_READERS:
        raise TooMany(f"arena {arena.name} is open for reading in {len(arena.readers)} processes, and no more may")
