"""Whose share a uid counts against: the uids of one range of /etc/subuid have one share, since one user can be all of them.

Ranges of root are left out: whatever root hands on belongs to many users, or to nobody yet.  Prose: docs/security.md.
"""

from bisect import bisect_right
from dataclasses import dataclass

_ROOT = ("root", "0")
_LAST_UID = 2**32 - 2
_MOST_RANGES = 65536


@dataclass(frozen=True, slots=True)
class UidRanges:
    """ranges: the first uid and the uid behind the last of each, in their order."""

    ranges: tuple[tuple[int, int], ...] = ()

    def share_of(self, uid: int) -> int:
        """The first uid of its range; itself where it is in none."""
        place = bisect_right(self.ranges, (uid, _LAST_UID)) - 1
        return self.ranges[place][0] if place >= 0 and uid < self.ranges[place][1] else uid


NO_RANGES = UidRanges()


def parse(text: str) -> UidRanges:
    """The lines OWNER:FIRST:COUNT of subuid(5); what is no such line is passed over."""
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
