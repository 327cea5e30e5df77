"""Queue the clients that wait for a fault domain, and look for a place for all of them at once when the domains change.

Clients with equal requests wait for the same reason, so mpsd decides once for them; and users without a domain get the same
answer, as do clients with keys that no domain has, and clients that name other GPUs of the same domain. A user with fewer
domains comes first, of several such users the one whose client has waited longest. Prose: docs/domains.md, "Placement".
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.placement_waits import PlacementWaits, Reason
from mpsd.domains.rules.placement import Create, Join, PlacementRequest, Wait
from mpsd.domains.services_port import ServicesPort
from mpsd.errors import Stopping
from mpsd.fairness.uid_ranges import UidRanges
from mpsd.model.domain import DomainView
from mpsd.model.process import ProcessId

log = structlog.get_logger()
NEW_USER = -1  # no user has this uid
_NEW_KEY = "\0"  # no domain has this key
_PAUSE_SECONDS = 0.01  # between two looks: in a crowd each client causes a dozen changes


class PlacementPool(Protocol):
    """The part of the pool that the queue uses (pool.py)."""

    @property
    def is_stopping(self) -> bool: ...
    @property
    def operators(self) -> frozenset[int]: ...
    @property
    def ranges(self) -> UidRanges: ...
    @property
    def services(self) -> ServicesPort: ...
    def views(self) -> list[DomainView]: ...
    def decide(self, ask: PlacementRequest, process: ProcessId | None, views: list[DomainView]) -> Join | Create | Wait: ...
    def drained_of(self, ask: PlacementRequest) -> frozenset[str]: ...
    def begin_domain(self, decision: Create) -> None: ...
    def place_now(self, ask: PlacementRequest, process: ProcessId | None) -> Domain | None: ...


class WaitingClient(Struct, eq=False):
    """One connection that waits. told: the kinds of reasons in the log."""

    alike: "Alike"
    process: ProcessId | None
    number: int
    found: Domain | Exception | None = None
    is_over: trio.Event = field(default_factory=trio.Event)
    told: set[str] = field(default_factory=set)

    def finish(self, found: Domain | Exception) -> None:
        self.alike.entries.pop(self.number, None)
        self.found = found
        self.is_over.set()

    def tell(self, reason: str) -> None:
        """Log each kind of reason once: what the domains do changes often."""
        kind = reason.partition(":")[0]
        if kind not in self.told:
            self.told.add(kind)
            log.info("client.waiting", process=self.process and self.process.pid, uid=self.alike.ask.uid, reason=reason)


class Alike(Struct, eq=False):
    """Entries that ask alike, by their numbers: the order of arrival."""

    ask: PlacementRequest
    as_new: PlacementRequest  # what a user without a domain would ask
    entries: dict[int, WaitingClient] = field(default_factory=dict)
    reason: Reason = field(default_factory=Reason)

    @property
    def first(self) -> WaitingClient:
        return next(iter(self.entries.values()))

    def explain(self, wait: Wait) -> None:
        if self.reason.change(wait):
            for entry in self.entries.values():
                entry.tell(wait.reason)


class PlacementQueue:
    """Guards that a look costs no more for many waiting clients than for few, and that each entry is answered once."""

    def __init__(self, places: PlacementPool, waits: PlacementWaits) -> None:
        self._places, self._waits = places, waits
        self._alike: dict[tuple[PlacementRequest, Hashable], Alike] = {}
        self._of_process: dict[ProcessId, list[WaitingClient]] = {}
        self._placed: set[ProcessId] = set()  # processes with a domain since the last look
        self._is_due = trio.Event()
        self._next_number = 1

    @property
    def is_empty(self) -> bool:
        return not self._alike

    def look_soon(self) -> None:
        """Look again for places: something has changed."""
        if self._alike:
            self._is_due.set()

    def note_placed(self, process: ProcessId | None) -> None:
        """Let the other waiting connections of the process follow to its domain."""
        if process in self._of_process:
            self._placed.add(process)
            self._is_due.set()

    async def wait(self, ask: PlacementRequest, process: ProcessId | None) -> Domain:
        """Wait until a domain takes the process. Raise Stopping if mpsd quits during the wait."""
        with self._waits.begin(process, ask.uid), self._listed(ask, process) as entry:
            await entry.is_over.wait()
        if isinstance(entry.found, Exception):
            raise entry.found
        assert entry.found is not None, "an entry that is over has a domain"
        return entry.found

    async def run(self) -> None:
        """Run as long as mpsd."""
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            self._look()
            await trio.sleep(_PAUSE_SECONDS)

    # -- entries -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _listed(self, ask: PlacementRequest, process: ProcessId | None) -> Iterator[WaitingClient]:
        key = ask, self._places.services.service_of(process)  # its members keep out of each other's domains
        alike = self._alike.setdefault(key, Alike(ask, replace(ask, uid=NEW_USER)))
        entry = WaitingClient(alike, process, self._next_number)
        self._next_number += 1
        alike.entries[entry.number] = entry
        if process is not None:
            self._of_process.setdefault(process, []).append(entry)
            self._waits.explain(process, alike.reason)
        if alike.reason.text:
            entry.tell(alike.reason.text)
        else:
            self._is_due.set()
        try:
            yield entry
        finally:
            alike.entries.pop(entry.number, None)
            if not alike.entries and self._alike.get(key) is alike:
                del self._alike[key]
            if process is not None:
                self._of_process[process].remove(entry)
                if not self._of_process[process]:
                    del self._of_process[process]

    # -- a look ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._places.is_stopping:
            for entry in [entry for alike in self._alike.values() for entry in alike.entries.values()]:
                self._try(entry)
            return
        for entry in [entry for process in self._placed for entry in self._of_process.get(process, ())]:
            self._try(entry)
        self._placed.clear()
        look = _Look(self._places)
        domains_of = Counter(share for view in look.views if view.clients for share in look.shares_in(view))
        waiting = [alike for alike in self._alike.values() if alike.entries]
        for alike in sorted(waiting, key=lambda alike: (domains_of[look.share_of(alike.ask.uid)], alike.first.number)):
            self._place(alike, look)

    def _place(self, alike: Alike, look: "_Look") -> None:
        while alike.entries:
            decision = look.decide(alike)
            if isinstance(decision, Wait):
                alike.explain(decision)
                return
            if isinstance(decision, Create):
                self._places.begin_domain(decision)
                look.renew()
                return  # its start is a change
            self._try(alike.first)
            look.renew()

    def _try(self, entry: WaitingClient) -> None:
        """Place the entry, if a domain takes it now."""
        found: Domain | Exception | None
        try:
            found = self._places.place_now(entry.alike.ask, entry.process)
        except (Stopping, OSError) as exc:
            found = exc
        if found is not None:
            entry.finish(found)


class _Look:
    """Guards that what is decided for one kind of client holds for all of that kind, until a domain has changed."""

    def __init__(self, places: PlacementPool) -> None:
        self._places = places
        self._waits: dict[PlacementRequest, Wait] = {}  # a placement takes room and gives none: these still wait after it
        self.share_of = places.ranges.share_of
        self.renew()

    def renew(self) -> None:
        self.views = self._places.views()
        self._known = set().union(*map(self.shares_in, self.views), *(view.failing for view in self.views))
        self._keys = {"", *(view.key for view in self.views)}

    def shares_in(self, view: DomainView) -> set[int]:
        """Return the users who have clients or a server in the domain, by their shares."""
        return {self.share_of(uid) for uid in view.users | {view.uid} if uid is not None}

    def decide(self, alike: Alike) -> Join | Create | Wait:
        uid = alike.ask.uid
        is_known = uid in self._places.operators or self.share_of(uid) in self._known
        kind = alike.ask if is_known else alike.as_new
        if kind.key not in self._keys:  # then it does not matter which it is
            kind = replace(kind, key=_NEW_KEY)
        if kind.named != (drained := self._places.drained_of(kind)):  # a user's processes can name thousands of sets of GPUs
            kind = replace(kind, named=drained)
        if (wait := self._waits.get(kind)) is not None:
            return wait
        decision = self._places.decide(alike.ask, None, self.views)
        if isinstance(decision, Wait):
            self._waits[kind] = decision
        elif isinstance(decision, Join):  # without room, it does not matter which domains have other members
            process = alike.first.process
            if self._places.services.service_of(process) is not None:
                decision = self._places.decide(alike.ask, process, self.views)
        return decision
