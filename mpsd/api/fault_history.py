"""What the socket itself remembers of faults: the last `fault.*` events, and how many errors each process has reported.

The daemon's own state has the incidents, which are built from these events and other evidence (ports.py, Faults).
FaultsInMemory, an implementation without a database, is here too.  Prose: docs/faults.md.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpsd.api.event_bus import Event
from mpsd.errors import NoSuchFault
from mpsd.model.blame import BlameStatus
from mpsd.model.fault import FirstError, Incident
from mpsd.model.process import ProcessId

KEPT = 1024  # a failing GPU reports several a second
REPORTS = 4  # of one process: after its first error every call fails, and adds no information
REPORTERS = 4096  # processes whose count is kept


@dataclass(slots=True)
class FaultLog:
    """Guards that each fault has its own number, and that only the last KEPT are kept."""

    _kept: deque[tuple[int, Event]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _next: int = 1

    def take(self, event: Event) -> None:
        if event.topic.startswith("fault."):
            self._kept.append((self._next, event))
            self._next += 1

    def all(self) -> Iterable[tuple[int, Event]]:
        return tuple(self._kept)


@dataclass(slots=True)
class Reports:
    """Guards that only the first reports of a process count, and that the number of remembered processes is bounded."""

    _counts: dict[ProcessId, int] = field(default_factory=dict)

    def left(self, process: ProcessId) -> int:
        return REPORTS - self._counts.get(process, 0)

    def count(self, process: ProcessId) -> None:
        self._counts[process] = self._counts.pop(process, 0) + 1  # moved to the end: the last to report is forgotten last
        if len(self._counts) > REPORTERS:
            del self._counts[next(iter(self._counts))]


@dataclass(slots=True)
class FaultsInMemory:
    """Faults (ports.py) kept in memory, without correlation and without a database."""

    kept: dict[int, Incident] = field(default_factory=dict)
    held: dict[str, BlameStatus] = field(default_factory=dict)
    reported: deque[tuple[ProcessId, FirstError]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def keep(self, incident: Incident) -> None:
        """Store a new incident, or a newer revision of one."""
        self.kept[incident.number] = incident

    def hold(self, standing: BlameStatus) -> None:
        self.held[standing.key] = standing

    def incidents(self, after: int) -> Iterable[Incident]:
        return [incident for number, incident in sorted(self.kept.items()) if number > after]

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        return [incident for number, incident in sorted(self.kept.items(), reverse=True) if before is None or number < before]

    def incident(self, number: int) -> Incident:
        if number not in self.kept:
            raise NoSuchFault(f"no fault has number {number}")
        return self.kept[number]

    def report(self, process: ProcessId, error: FirstError) -> None:
        self.reported.append((process, error))

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """Return False: no guards are watched."""
        return False

    def standings(self) -> Iterable[BlameStatus]:
        return tuple(self.held.values())

    def pardon(self, key: str) -> BlameStatus:
        if key not in self.held:
            raise NoSuchFault(f"nothing is held against {key}")
        return self.held.pop(key)
