"""Which clients are in a frozen cgroup, without a wait for the files of that cgroup.

Users hold the lock of a directory of cgroups as long as they like, by a listing of it into memory that never answers.  So a
child of the inspector opens those files, and a client whose cgroup it could not read in time may be frozen.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import trio

from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import Frozen
from mpsd.model.process import MOST_PID

FROZEN = "is frozen with its cgroup"
UNREAD = "may be frozen: mpsd cannot read its cgroup"  # other users can cause that


async def how_frozen(
    inspector: Inspector, unified: Path | None, pids: Sequence[int], share: int | None = None
) -> Mapping[int, str]:
    """Return how those of one user's processes are frozen that are, or may be.

    unified: where cgroup v2 is mounted.  pids: as they were given or listed: one may be none.  share: the user's number.
    """
    pids = [pid for pid in pids if 0 < pid <= MOST_PID]
    if unified is None or not pids:
        return {}
    share = inspector.share_of(pids[0]) if share is None else share
    try:
        found = await inspector.frozen(pids, unified, share)
    except Unreadable:
        return dict.fromkeys(pids, UNREAD)
    return {pid: FROZEN if how is Frozen.YES else UNREAD for pid, how in found.items()}


class FrozenClients:
    """Guards that a look at one user's clients delays none at another user's.  unified: where cgroup v2 is mounted."""

    def __init__(self, inspector: Inspector, unified: Path | None) -> None:
        self._inspector, self._unified = inspector, unified
        self._busy: set[int] = set()  # shares with a look in progress
        self.found: dict[int, str] = {}  # how a client is frozen, by its pid, as of the last look

    def by_share(self, pids: Iterable[int]) -> dict[int, list[int]]:
        """Return the processes of each user, by the user's share.  It takes 5 us for each process."""
        if self._unified is None:
            return {}
        shares: dict[int, list[int]] = {}
        for pid in pids:
            shares.setdefault(self._inspector.share_of(pid), []).append(pid)
        return shares

    def keep(self, pids: set[int]) -> None:
        """Forget all processes but these, the present clients."""
        self.found = {pid: how for pid, how in self.found.items() if pid in pids}

    def look(self, shares: Mapping[int, Sequence[int]], nursery: trio.Nursery) -> None:
        """Begin to look at the processes of each user whose last look has ended."""
        for share in shares.keys() - self._busy:
            self._busy.add(share)
            nursery.start_soon(self._look, share, shares[share])

    async def _look(self, share: int, pids: Sequence[int]) -> None:
        try:
            found = await how_frozen(self._inspector, self._unified, pids, share)
        finally:
            self._busy.discard(share)
        self.found = {pid: how for pid, how in self.found.items() if pid not in pids} | dict(found)
