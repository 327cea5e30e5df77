"""Search a sorted list of numbers: mpsd keeps long ones so, which take less memory than sets and are searched as fast."""

from bisect import bisect_left
from collections.abc import Sequence


def has(numbers: Sequence[int], number: int) -> bool:
    """Return whether the number is one of these, which are sorted."""
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number
