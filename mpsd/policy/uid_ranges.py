"""Map a uid to its share of a limit: one user can own all uids of a range of /etc/subuid, so they have one share.

A long range is divided into blocks of 65,536 uids with a share each: container runtimes (users kubelet, containers, lxd) give
each container such a block of one range.  Ranges of root are left out: root gives them to many users.  Prose: docs/security.md.
"""

from bisect import bisect_right
from dataclasses import dataclass

_ROOT = ("root", "0")
_LAST_UID = 2**32 - 2
_MOST_RANGES = 65536
_BLOCK_UIDS = 65536  # of one container with a user namespace of its own


@dataclass(frozen=True, slots=True)
class UidRanges:
    """ranges: the first uid of each range and the first uid after it, in order."""

    ranges: tuple[tuple[int, int], ...] = ()

    def share_of(self, uid: int) -> int:
        """The first uid of its block of the innermost range that has it; itself where no range has it."""
        for place in range(bisect_right(self.ranges, (uid, _LAST_UID)) - 1, -1, -1):
            first, end = self.ranges[place]
            if uid < end:
                return uid - (uid - first) % _BLOCK_UIDS
        return uid


NO_RANGES = UidRanges()


def parse(text: str) -> UidRanges:
    """Parse the lines OWNER:FIRST:COUNT of subuid(5); skip other lines."""
    found = []
    for line in text.splitlines()[:_MOST_RANGES]:
        owner, first, count = [*(word.strip() for word in line.split(":")), "", ""][:3]
        if owner in _ROOT or not _is_number(first) or not _is_number(count):
            continue
        if 0 < int(first) <= _LAST_UID:
            found.append((int(first), int(first) + int(count)))
    return UidRanges(tuple(sorted(found)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10
