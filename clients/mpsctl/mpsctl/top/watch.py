"""The polling of mpsd for `top`: the requests of each refresh, the cache between them, and the wait for events.

`top` requests the details of single clients and leases one by one, and caches them until an event reports a change.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, takewhile

from mpsd_client import Client, Event, Lost, Refused, calls

from mpsctl.session import Session
from mpsctl.top.clients import Lookup, TopView, by_domain, in_order, row

PAUSE_SECONDS = 0.2  # least time between two refreshes, however many events arrive
MOST_CLIENTS = 1000  # each page makes mpsd look at all of them
MOST_LOOKUPS = 2 * MOST_CLIENTS


@dataclass(slots=True)
class Watch:
    """Polls mpsd for `top`.  The cached facts of a lease are never older than the last event about it."""

    mpsd: Client
    session: Session
    faults: Counter[str | None] = field(default_factory=Counter)
    took_seconds: float = 0.0  # duration of the last refresh: a busy mpsd is asked less often
    lookups: int = MOST_LOOKUPS  # how many details the next refreshes may request; the rest stay blank until it is raised
    _last_fault: int | None = None
    _clients: dict[tuple[int, int], Lookup] = field(default_factory=dict)
    _leases: dict[int | None, Lookup] = field(default_factory=lambda: {None: Lookup()})

    def look(self, rows: int) -> TopView:
        began = time.monotonic()
        status = self.mpsd.ask(calls.status())
        self._hear_faults(status.started_at)
        clients = list(islice(self.mpsd.pages(calls.client_list(limit=MOST_CLIENTS)), MOST_CLIENTS))
        shown = in_order(clients)[:rows]
        names = self.session.user_name
        found = tuple(
            row(each, names(each.uid), self._client(each.pid, each.start_time), self._lease(each.lease_id), self.faults)
            for each in shown
        )
        self._forget_but({(each.pid, each.start_time) for each in shown}, {None, *(each.lease_id for each in shown)})
        self.took_seconds = time.monotonic() - began
        states = Counter(each.state for each in clients)
        return TopView(self.session.out.surroundings.now(), status, states, found)

    def wait(self, seconds: float) -> None:
        """Wait this long, or until shortly after an event, since events come in groups."""
        end = time.monotonic() + max(seconds, self.took_seconds)
        while (left := end - time.monotonic()) > 0:
            event = next(self.mpsd.events(timeout_seconds=left), None)
            if event is None:
                return
            self.take(event)
            end = min(end, time.monotonic() + max(PAUSE_SECONDS, self.took_seconds))

    def take(self, event: Event | Lost) -> None:
        """Forget the facts that the event changes."""
        if isinstance(event, Lost):
            self._leases = {None: Lookup()}
        elif (lease_id := event.facts.get("lease_id")) is not None:
            self._leases.pop(lease_id, None)

    def _hear_faults(self, since: float) -> None:
        """Count faults by domain: on the first call those since then, later the new ones."""
        if self._last_fault is None:
            newest = self.mpsd.pages(calls.fault_list(newest_first=True))
            found = list(takewhile(lambda fault: fault.began_at >= since, newest))
        else:
            found = list(self.mpsd.pages(calls.fault_list(self._last_fault)))
        if found:
            self._last_fault = max(fault.number for fault in found)
            self.faults.update(by_domain(found))

    def _client(self, pid: int, start_time: int) -> Lookup:
        if (pid, start_time) not in self._clients:
            if not self._may_look():
                return Lookup()
            try:
                container = self.mpsd.ask(calls.client_why(pid, start_time)).container
            except Refused:
                return Lookup()  # the client has ended in the meantime
            self._clients[pid, start_time] = Lookup(container=container)
        return self._clients[pid, start_time]

    def _lease(self, lease_id: int | None) -> Lookup:
        if lease_id is not None and lease_id not in self._leases:
            if not self._may_look():
                return Lookup()
            try:
                found = self.mpsd.ask(calls.lease_get(lease_id))
            except Refused:
                return Lookup()  # the lease has ended, or belongs to another user
            self._leases[lease_id] = Lookup(
                sm_percent=found.sm_percent,
                sm_count=found.sm_count,
                memory_bytes=found.memory_bytes,
            )
        return self._leases[lease_id]

    def _may_look(self) -> bool:
        self.lookups -= 1
        return self.lookups >= 0

    def _forget_but(self, clients: set[tuple[int, int]], leases: set[int | None]) -> None:
        self._clients = {key: found for key, found in self._clients.items() if key in clients}
        self._leases = {key: found for key, found in self._leases.items() if key in leases}
