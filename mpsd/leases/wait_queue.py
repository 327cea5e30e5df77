"""Keep the waiting leases and clients, within the bounds of the queue.

The queue has `max_queue` places, of which one user who is not an operator has at most `user_queue`, and the last are kept for
operators and for users with few (fairness/client_slots.py): else eight users would keep all others out.  A lease that finds no
place is refused (lease_book.py).  A client is refused too if the settings allow an answer; if it can only wait, it waits
without a place until one is free: not listed, not considered, and not matched with new leases.  The connections that the relay
takes bound their number.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.errors import Refused
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.leases.rules.budgets import Scope
from mpsd.leases.rules.queue import Demand, Waiting
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.lease import Grant, Identity
from mpsd.model.process import Credentials
from mpsd.notify import Changed

NO_PLACE = "the queue has no place for its user"


class Client(Struct, frozen=True):
    """A client that asks for admission.  places: where a lease for it could be (matching.py)."""

    identity: Identity
    credentials: Credentials
    places: "array[int]"


class WaitQueueEntry(Struct, eq=False):
    """A waiting lease or client.  lease_id: the lease, or the client's; client: None for a lease.

    outcome: how the wait ended.  callers: tasks that wait for it, one for each connection of the process.
    """

    waiting: Waiting
    uid: int
    lease_id: int | None
    client: Client | None = None
    blocked: Scope | str = ""  # what it lacks, as reported; the figures in `reason` are of that moment
    reason: str = ""
    outcome: Grant | Refused | None = None
    callers: int = 0
    changed: Changed = field(default_factory=Changed)

    def tell(self, blocked: Scope | str, words: Callable[[], str]) -> None:
        """Report what is lacking: once for each scope or text, not each time that a figure changes."""
        if blocked != self.blocked:
            self.blocked, self.reason = blocked, words()
            self._wake()

    def end(self, outcome: Grant | Refused) -> None:
        self.outcome = outcome
        self._wake()

    def _wake(self) -> None:
        self.changed.notify()


class WaitQueue:
    """Guards that no entry waits twice, and that the number of places is within the settings."""

    def __init__(self, share_of: Callable[[int], int]) -> None:
        """share_of: the uid that a uid counts as."""
        self.demand = Demand()
        self._placed: dict[Hashable, WaitQueueEntry] = {}
        self._outside: dict[Hashable, WaitQueueEntry] = {}  # in order of arrival
        self._places: Counter[int] = Counter()  # by the uid whose share they are of
        self._share_of = share_of

    def __len__(self) -> int:
        return len(self._placed)

    def __iter__(self) -> Iterator[WaitQueueEntry]:
        """Iterate over the entries with a place."""
        return iter(list(self._placed.values()))

    def everybody(self) -> list[WaitQueueEntry]:
        return [*self._placed.values(), *self._outside.values()]

    def find(self, key: Hashable) -> WaitQueueEntry | None:
        return self._placed.get(key) or self._outside.get(key)

    def has_place_for(self, uid: int, settings: AdmissionSettings) -> bool:
        total, own, is_operator = len(self._placed), self._places[self._share_of(uid)], uid in settings.operators
        if total >= settings.max_queue or (own >= settings.user_queue and not is_operator):
            return False
        return not hindrance_of_slots(settings.max_queue, own, total, is_operator)

    def join(self, entry: WaitQueueEntry, settings: AdmissionSettings) -> bool:
        """Add the entry; return whether it has a place."""
        if self.has_place_for(entry.uid, settings):
            self._place(entry)
            return True
        entry.blocked = entry.reason = NO_PLACE
        self._outside[entry.waiting.key] = entry
        return False

    def leave(self, entry: WaitQueueEntry, settings: AdmissionSettings) -> WaitQueueEntry | None:
        """Remove the entry; return another entry, which is to be considered, if it got the place at once."""
        key = entry.waiting.key
        self._outside.pop(key, None)
        if self._placed.pop(key, None) is None:
            return None
        self.demand.add(entry.waiting.amounts, -1)
        share = self._share_of(entry.uid)
        self._places[share] -= 1
        if not self._places[share]:
            del self._places[share]
        return self._let_up(settings)

    def alter(self, entry: WaitQueueEntry, waiting: Waiting, lease_id: int | None) -> None:
        """Change what the entry waits for."""
        if entry.waiting.key in self._placed:
            self.demand.add(entry.waiting.amounts, -1)
            self.demand.add(waiting.amounts)
        entry.waiting, entry.lease_id = waiting, lease_id

    def hinder(self, entry: WaitQueueEntry, hindrance: str) -> None:
        if entry.waiting.hindrance != hindrance:
            entry.waiting = replace(entry.waiting, hindrance=hindrance)

    def clients_by_lease(self) -> Counter[int]:
        return Counter(each.lease_id for each in self._placed.values() if each.client and each.lease_id is not None)

    def _place(self, entry: WaitQueueEntry) -> None:
        self._placed[entry.waiting.key] = entry
        self._places[self._share_of(entry.uid)] += 1
        self.demand.add(entry.waiting.amounts)

    def _let_up(self, settings: AdmissionSettings) -> WaitQueueEntry | None:
        """Give a free place to the first entry outside that may have it, and return it."""
        refused: set[int] = set()  # shares: one user can have thousands outside
        for key, entry in self._outside.items():
            if (share := self._share_of(entry.uid)) in refused:
                continue
            if self.has_place_for(entry.uid, settings):
                del self._outside[key]
                self._place(entry)
                return entry
            refused.add(share)
        return None
