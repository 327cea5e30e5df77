"""Place the windows of arenas: each has an address range of its own, the same in every process.  Pure."""

from collections.abc import Iterable

from mpsd.model.arena import FIRST_ADDRESS, GRANULE, LAST_ADDRESS, WINDOW_UNIT

Window = tuple[int, int]  # its first address, and the first address after it


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def window_bytes(capacity_bytes: int, asked_bytes: int | None) -> int:
    """Return the window's size: by default twice the capacity, so that a full arena still has room between its allocations."""
    return round_up(2 * capacity_bytes if asked_bytes is None else asked_bytes, WINDOW_UNIT)


def place(windows: Iterable[Window], size: int, first: int = FIRST_ADDRESS, last: int = LAST_ADDRESS) -> int | None:
    """Return the lowest address with `size` free bytes; None if no gap is large enough."""
    at = first
    for begin, end in sorted(windows):
        if begin - at >= size:
            return at
        at = max(at, end)
    return at if last - at >= size else None


def may_end_at(windows: Iterable[Window], base: int, end: int, last: int = LAST_ADDRESS) -> bool:
    """Return whether the window that begins at `base` can end at `end`."""
    return end <= last and all(begin <= base or begin >= end for begin, _ in windows)


def is_granular(*numbers: int) -> bool:
    return all(number % GRANULE == 0 for number in numbers)
