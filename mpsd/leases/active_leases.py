"""Keep the leases: on disk first, then in the index, the budgets, and the list of those that expire.

It does not know clients or waiting entries; lease_book.py does.
"""

import heapq
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from mpsd.errors import NoSuchLease
from mpsd.leases.quota_limits import QuotaLimits
from mpsd.leases.rules.matching import LeaseIndex
from mpsd.leases.rules.usage import Account
from mpsd.leases.store import LeaseStore
from mpsd.model.lease import Identity, Lease, LeaseSpec, LeaseState, SelectorKind
from mpsd.model.process import ProcessId

_SLACK = 64  # outdated entries in the list of ends, in addition to one for each lease


class ActiveLeases:
    """Guards that the same leases are on disk, found by matching, and counted.  Each result outlives mpsd."""

    def __init__(self, store: LeaseStore, account: Account, quotas: QuotaLimits) -> None:
        self._store = store
        self._account = account
        self._quotas = quotas
        self._leases: dict[int, Lease] = {}
        self._index = LeaseIndex()
        self._by_process: dict[ProcessId, set[int]] = {}
        self._by_request: dict[tuple[int, bool, str], int] = {}
        self._ends: list[tuple[float, int]] = []  # a heap; entries of ended or renewed leases may be in it

    def __len__(self) -> int:
        return len(self._leases)

    def restore(self) -> None:
        """Load the leases that an earlier mpsd acknowledged."""
        for lease in self._store.leases():
            self._enter(lease)

    def all(self) -> Sequence[Lease]:
        return list(self._leases.values())

    def find(self, lease_id: int) -> Lease:
        if (lease := self._leases.get(lease_id)) is None:
            raise NoSuchLease(f"lease {lease_id} does not exist")
        return lease

    def get(self, lease_id: int | None) -> Lease | None:
        return None if lease_id is None else self._leases.get(lease_id)

    def match(self, identity: Identity) -> Lease | None:
        return self._index.match(identity)

    def made_by(self, owner_uid: int, request_key: str, *, is_for_all: bool) -> Lease | None:
        """Return the lease that this request of its owner has made, while it exists.

        is_for_all: by an operator, whose uid a process in a container can have.
        """
        return self.get(self._by_request.get((owner_uid, is_for_all, request_key)))

    def processes(self) -> Sequence[ProcessId]:
        """Return the processes that leases name by pid."""
        return list(self._by_process)

    def naming(self, process: ProcessId) -> list[Lease]:
        return [self._leases[lease_id] for lease_id in sorted(self._by_process.get(process, ()))]

    def add(self, draft: Lease) -> Lease:
        lease = self._store.add(draft)
        self._enter(lease)
        return lease

    def activate(self, lease: Lease, now: float) -> Lease:
        """Activate a lease that has room now; its time begins."""
        return self._replace(replace(lease, state=LeaseState.ACTIVE, expires_at=end_of(lease.spec, now)))

    def renew(self, lease: Lease, ttl_seconds: float | None, now: float) -> Lease:
        """Change the time to live.  For a lease that waits for room, it begins later."""
        spec = replace(lease.spec, ttl_seconds=ttl_seconds)
        is_active = lease.state is LeaseState.ACTIVE
        return self._replace(replace(lease, spec=spec, expires_at=end_of(spec, now) if is_active else None))

    def remove(self, leases: Iterable[Lease], process: ProcessId | None = None) -> None:
        """Remove the leases, and the grant of `process`, which has ended."""
        gone = list(leases)
        self._store.remove([lease.id for lease in gone], process)
        for lease in gone:
            del self._leases[lease.id]
            self._index.take(lease)
            self._account.forget(lease.id)
            self._by_request.pop((lease.owner_uid, lease.for_all_users, lease.spec.request_key), None)
            if (named := process_of(lease)) is not None:
                self._by_process[named].discard(lease.id)
                if not self._by_process[named]:
                    del self._by_process[named]

    def due(self, now: float, most: int) -> list[Lease]:
        """Return the leases whose time is over, at most so many; a later call returns the others."""
        found: dict[int, Lease] = {}
        while len(found) < most and self._ends and self._ends[0][0] <= now:
            lease = self._leases.get(heapq.heappop(self._ends)[1])
            if lease is not None and lease.expires_at is not None and lease.expires_at <= now:
                found[lease.id] = lease
        return list(found.values())

    def try_again_at(self, lease: Lease, at: float) -> None:
        """Schedule another attempt to end the lease, after a failed write."""
        heapq.heappush(self._ends, (at, lease.id))

    def next_end(self) -> float | None:
        while self._ends:
            end, lease_id = self._ends[0]
            lease = self._leases.get(lease_id)
            if lease is not None and lease.expires_at is not None and lease.expires_at <= end:
                return end
            heapq.heappop(self._ends)
        return None

    def _replace(self, lease: Lease) -> Lease:
        self._store.change(lease)
        was_active = self._leases[lease.id].state is LeaseState.ACTIVE
        self._leases[lease.id] = lease
        self._index.put(lease)
        self._expect_end(lease)
        if lease.state is LeaseState.ACTIVE and not was_active:
            self._reserve(lease)
        return lease

    def _enter(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self._index.put(lease)
        if lease.spec.request_key:
            self._by_request[lease.owner_uid, lease.for_all_users, lease.spec.request_key] = lease.id
        self._account.know(lease, self._quotas.owner_of_lease(lease))
        if lease.state is LeaseState.ACTIVE:
            self._reserve(lease)
        if (named := process_of(lease)) is not None:
            self._by_process.setdefault(named, set()).add(lease.id)
        self._expect_end(lease)

    def _reserve(self, lease: Lease) -> None:
        gpus, owner = self._quotas.gpus_of(lease.spec), self._quotas.owner_of_lease(lease)
        self._account.reserve(lease, gpus, owner, self._quotas.clock())

    def _expect_end(self, lease: Lease) -> None:
        if lease.expires_at is None:
            return
        heapq.heappush(self._ends, (lease.expires_at, lease.id))
        if len(self._ends) > 2 * len(self._leases) + _SLACK:  # each renewal leaves an outdated entry
            self._ends = [(each.expires_at, each.id) for each in self._leases.values() if each.expires_at is not None]
            heapq.heapify(self._ends)


def end_of(spec: LeaseSpec, now: float) -> float | None:
    return None if spec.ttl_seconds is None else now + spec.ttl_seconds


def process_of(lease: Lease) -> ProcessId | None:
    """Return the process that it names by pid, and with which it ends."""
    selector = lease.spec.selector
    return ProcessId(int(selector.value), selector.start_time) if selector.kind is SelectorKind.PID else None
