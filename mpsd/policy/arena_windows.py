"""Where the windows of arenas are: each has addresses of its own, the same in every process.  Pure."""

from collections.abc import Iterable

from mpsd.arena import FIRST_ADDRESS, GRANULE, LAST_ADDRESS, WINDOW_UNIT

Window = tuple[int, int]  # where it begins, and the first address behind it


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def window_bytes(capacity_bytes: int, asked_bytes: int | None) -> int:
    """Twice the capacity where nothing was asked for: an arena that is full still has room between its allocations."""
    return round_up(2 * capacity_bytes if asked_bytes is None else asked_bytes, WINDOW_UNIT)


def place(windows: Iterable[Window], size: int, first: int = FIRST_ADDRESS, last: int = LAST_ADDRESS) -> int | None:
    """The lowest address at which `size` bytes are free; None where there is none."""
    at = first
    for begin, end in sorted(windows):
        if begin - at >= size:
            return at
        at = max(at, end)
    return at if last - at >= size else None


def may_end_at(windows: Iterable[Window], base: int, end: int, last: int = LAST_ADDRESS) -> bool:
    """Whether the window that begins at `base` can reach so far."""
    return end <= last and all(begin <= base or begin >= end for begin, _ in windows)


def is_granular(*numbers: int) -> bool:
    return all(number % GRANULE == 0 for number in numbers)
