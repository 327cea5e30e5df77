"""The free pages of the key-value cache.  Pure.

No request owns page 0: the GPU computes a fixed number of slots, and those without a request write there.
"""

from collections.abc import Iterable


class Pages:
    """Allocates pages, each to one owner only."""

    def __init__(self, count: int) -> None:
        """count: all pages, page 0 included."""
        self._free = list(range(count - 1, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take this many pages; return None, and take none, if fewer are free."""
        if count > len(self._free):
            return None
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return tuple(reversed(taken))

    def take_these(self, pages: Iterable[int]) -> None:
        """Take the pages that a record lists as used.  Raises ValueError if one is not free: the record is inconsistent."""
        wanted = list(pages)
        taken = set(wanted)
        if len(taken) != len(wanted) or not taken.issubset(self._free):
            raise ValueError(f"pages that are not free, or twice: {wanted}")
        self._free = [page for page in self._free if page not in taken]

    def give_back(self, pages: Iterable[int]) -> None:
        self._free.extend(reversed(list(pages)))
