"""Which pages of the key-value cache are free.  Pure.

Page 0 is nobody's: the GPU computes a fixed number of slots, and those without a request have to write somewhere.
"""

from collections.abc import Iterable


class Pages:
    """Guards that no page has two owners."""

    def __init__(self, count: int) -> None:
        """count: with page 0."""
        self._free = list(range(count - 1, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """All of them, or None."""
        if count > len(self._free):
            return None
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return tuple(reversed(taken))

    def take_these(self, pages: Iterable[int]) -> None:
        """Those that a record says are in use.  Raises ValueError: one of them is not free, so the record cannot be right."""
        wanted = list(pages)
        taken = set(wanted)
        if len(taken) != len(wanted) or not taken.issubset(self._free):
            raise ValueError(f"pages that are not free, or twice: {wanted}")
        self._free = [page for page in self._free if page not in taken]

    def give_back(self, pages: Iterable[int]) -> None:
        self._free.extend(reversed(list(pages)))
