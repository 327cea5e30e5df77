"""What the socket itself remembers of faults: the last `fault.*` events, and how many errors each process has reported.

The daemon's own state has the incidents, which are built from these events and other evidence (faults/incidents.py).
Prose: docs/faults.md.
"""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from mpsd.api.event_bus import Event
from mpsd.model.process import ProcessId

KEPT = 1024  # a failing GPU reports several a second
REPORTS = 4  # of one process: after its first error every call fails, and adds no information
REPORTERS = 4096  # processes whose count is kept


class FaultLog(Struct):
    """Guards that each fault has its own number, and that only the last KEPT are kept."""

    _kept: deque[tuple[int, Event]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _next: int = 1

    def take(self, event: Event) -> None:
        if event.topic.startswith("fault."):
            self._kept.append((self._next, event))
            self._next += 1

    def all(self) -> Iterable[tuple[int, Event]]:
        return tuple(self._kept)


class Reports(Struct):
    """Guards that only the first reports of a process count, and that the number of remembered processes is bounded."""

    _counts: dict[ProcessId, int] = field(default_factory=dict)

    def left(self, process: ProcessId) -> int:
        return REPORTS - self._counts.get(process, 0)

    def count(self, process: ProcessId) -> None:
        self._counts[process] = self._counts.pop(process, 0) + 1  # moved to the end: the last to report is forgotten last
        if len(self._counts) > REPORTERS:
            del self._counts[next(iter(self._counts))]
