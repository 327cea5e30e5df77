"""All incidents: the last ones in memory, and all of them in the store."""

from collections.abc import Collection, Iterable
from heapq import merge
from itertools import islice

from mpsd.errors import NoSuchFault
from mpsd.faults.rules.blame_state import BlameState
from mpsd.faults.rules.verdict import WINDOW_NS
from mpsd.faults.store import FaultStore
from mpsd.model.fault import FaultClass, Incident

MOST_RECENT = 256


class IncidentHistory:
    """Guards that an incident that a full disk kept from being stored is listed all the same, while it is one of the last."""

    def __init__(self, store: FaultStore) -> None:
        self._store = store
        self._recent: dict[int, Incident] = {}  # by number, the one that changed last at the end
        self._unsaved: set[int] = set()  # the numbers of those that are not stored in their newest revision

    def put(self, incident: Incident) -> Incident | None:
        """Take a new revision, for `save` to store.  Return the last one, if it is still in memory."""
        before = self._recent.pop(incident.number, None)
        self._recent[incident.number] = incident
        if len(self._recent) > MOST_RECENT:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            self._unsaved.discard(oldest)
        return before

    def save(self, incident: Incident, blame: BlameState | None) -> None:
        """Store the incident that was put; with `blame`, both or neither."""
        is_saved = self._store.save(incident) if blame is None else self._store.save_with_blame(incident, blame)
        (self._unsaved.discard if is_saved else self._unsaved.add)(incident.number)

    def find(self, number: int) -> Incident:
        """Return the incident.  Raises NoSuchFault."""
        found = self._recent.get(number) or self._store.incident(number)
        if found is None:
            raise NoSuchFault(f"no fault has number {number}")
        return found

    def after(self, number: int) -> Iterable[Incident]:
        """Return the incidents with larger numbers, in ascending order."""
        return self._merged(self._store.incidents(number), [each for each in self._unsaved if each > number], 1)

    def before(self, number: int | None) -> Iterable[Incident]:
        """Return the incidents with smaller numbers (None: all), the newest first."""
        unsaved = [each for each in self._unsaved if number is None or each < number]
        return self._merged(self._store.incidents_before(number), unsaved, -1)

    def _merged(self, stored: Iterable[Incident], unsaved: Collection[int], step: int) -> Iterable[Incident]:
        """Merge in the incidents that are not stored; step: 1 for ascending, -1 for descending."""
        written = (each for each in stored if each.number not in unsaved)
        others = [self._recent[number] for number in sorted(unsaved, reverse=step < 0)]
        return merge(written, others, key=lambda each: step * each.number)

    def has_settled(self, domain: str, at_ns: int) -> bool:
        """Return whether one of the last faults was in this domain at that time, and takes no more evidence."""
        last = islice(self.before(None), MOST_RECENT)
        return any(each.is_settled and each.domain == domain and abs(each.began_ns - at_ns) < WINDOW_NS for each in last)

    def last_of_gpu(self, gpu: str) -> Incident | None:
        """Return the last failure of the GPU itself that is in memory."""
        of_gpus = (each for each in self._recent.values() if each.fault_class is FaultClass.DEVICE and not each.domain)
        return max((each for each in of_gpus if each.gpu == gpu), key=lambda each: each.number, default=None)
