"""Map a uid to its share of a limit: one user can own all uids of a range of /etc/subuid, so they have one share.

A long range is divided into blocks of 65,536 uids with a share each: container runtimes (users kubelet, containers, lxd, root)
give each container such a block of one range.  Ranges of root among ordinary uids are left out.  Prose: docs/security.md.
"""

from bisect import bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec import Struct

_ROOT, _LAST_ORDINARY_UID = ("root", "0"), 65535
_LAST_UID = 2**32 - 2
_MOST_RANGES = 65536
_BLOCK_UIDS = 65536  # of one container with a user namespace of its own


class UidRanges(Struct, frozen=True):
    """starts: the uids where another range becomes the innermost one, in order.  firsts: its first uid; None: no range."""

    starts: tuple[int, ...] = ()
    firsts: tuple[int | None, ...] = ()

    def share_of(self, uid: int) -> int:
        """The first uid of its block of the innermost range that has it; itself where no range has it."""
        place = bisect_right(self.starts, uid) - 1
        first = self.firsts[place] if place >= 0 else None
        return uid if first is None else uid - (uid - first) % _BLOCK_UIDS


NO_RANGES = UidRanges()


def of_ranges(ranges: Iterable[tuple[int, int]]) -> UidRanges:
    """Return the shares of these ranges, each its first uid and the first uid after it; they may overlap."""
    beginning = sorted(set(ranges), reverse=True)
    starts: list[int] = []
    firsts: list[int | None] = []
    around: list[tuple[int, int]] = []  # a heap: minus the first uid and the end of the ranges that may have `uid`
    for uid in sorted({edge for each in beginning for edge in each}):
        while beginning and beginning[-1][0] == uid:
            first, end = beginning.pop()
            heappush(around, (-first, -end))
        while around and -around[0][1] <= uid:
            heappop(around)
        starts.append(uid)
        firsts.append(-around[0][0] if around else None)
    return UidRanges(tuple(starts), tuple(firsts))


def parse(text: str) -> UidRanges:
    """Parse the lines OWNER:FIRST:COUNT of subuid(5); skip other lines."""
    found = []
    for line in text.splitlines()[:_MOST_RANGES]:
        owner, first, count = [*(word.strip() for word in line.split(":")), "", ""][:3]
        if not _is_number(first) or not _is_number(count):
            continue
        least = _LAST_ORDINARY_UID if owner in _ROOT else 0
        if least < int(first) <= _LAST_UID:
            found.append((int(first), int(first) + int(count)))
    return of_ranges(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10
