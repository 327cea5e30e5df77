"""What the socket itself remembers of faults: the last `fault.*` events, fed by the event bus, and how often who has reported.

Incidents, which are put together from these and much else, are the daemon's own (services.py, Faults); those in memory alone
are here too.  Prose: docs/faults.md.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpsd.api.events import Event
from mpsd.api.services import FirstError, Standing
from mpsd.errors import NoSuchFault
from mpsd.fault import Incident
from mpsd.model import ProcessId

KEPT = 1024  # a failing GPU reports several a second
REPORTS = 4  # of one process: after its first error every call fails, and tells nothing new
REPORTERS = 4096  # processes that are remembered


@dataclass(slots=True)
class FaultLog:
    """Guards that each fault has a number of its own, and that only the last are kept."""

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
    """Guards that the first reports of a process count, and no more; and that only so many processes are remembered."""

    _counts: dict[ProcessId, int] = field(default_factory=dict)

    def left(self, process: ProcessId) -> int:
        return REPORTS - self._counts.get(process, 0)

    def count(self, process: ProcessId) -> None:
        self._counts[process] = self._counts.pop(process, 0) + 1  # the one heard last is forgotten last
        if len(self._counts) > REPORTERS:
            del self._counts[next(iter(self._counts))]


@dataclass(slots=True)
class FaultsInMemory:
    """Faults (services.py) that nobody fuses and nobody stores: whoever knows of one keeps it here, in the order of numbers."""

    kept: dict[int, Incident] = field(default_factory=dict)
    held: dict[str, Standing] = field(default_factory=dict)
    reported: deque[tuple[ProcessId, FirstError]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def keep(self, incident: Incident) -> None:
        """A new one, or a newer revision of one."""
        self.kept[incident.number] = incident

    def hold(self, standing: Standing) -> None:
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
        """Nobody looks."""
        return False

    def standings(self) -> Iterable[Standing]:
        return tuple(self.held.values())

    def pardon(self, key: str) -> Standing:
        if key not in self.held:
            raise NoSuchFault(f"nothing is held against {key}")
        return self.held.pop(key)
