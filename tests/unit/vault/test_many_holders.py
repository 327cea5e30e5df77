"""Processes with open arenas: those of each user are counted as they come and go."""

import os

import pytest

from mpsd.errors import TooMany
from mpsd.fairness.uid_ranges import NO_RANGES
from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.vault import fencing
from mpsd.vault.fencing import ArenaHolders
from tests.unit.vault.machine import STRANGER, USER

PIDS = range(4_194_305, 4_194_405)  # no process has one of these


class CountedRanges:
    """Ranges of uids, which count the questions."""

    def __init__(self) -> None:
        self.asked = 0

    def share_of(self, uid: int) -> int:
        self.asked += 1
        return NO_RANGES.share_of(uid)


def test_one_more_process_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `arena.open` of a new process looked at all processes that have arenas open, up to 4,096, on the event loop."""
    monkeypatch.setattr(fencing, "MOST_OF_USER", len(PIDS))
    ranges, itself = CountedRanges(), processes.find(os.getpid())
    assert itself is not None
    holders = ArenaHolders(None, lambda process: False, ranges)  # type: ignore[arg-type]
    for pid in PIDS:
        holders.restore(ProcessId(pid, 1), USER)
    ranges.asked = 0
    holders.add(itself, STRANGER)
    assert ranges.asked < 10
    holders.remove(itself)
    with pytest.raises(TooMany, match=f"processes of user {USER} have arenas open"):
        holders.add(itself, USER)
    holders.remove(ProcessId(PIDS[0], 1))
    holders.add(itself, USER)
