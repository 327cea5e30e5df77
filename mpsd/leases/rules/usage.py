"""Keep the account of what is reserved and held, and by which lease or client; all changes are entered here.

Joins the ledger of budgets (budgets.py) with the pools of shares (sm_pools.py).  Values only: no waiting, no storing.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from mpsd.leases.rules.budgets import (
    AmountKind,
    Ledger,
    Owner,
    Scope,
    ScopeLevel,
    ScopeLimits,
    client_amounts,
    lease_amounts,
    memory_scopes,
    place_in,
    quota_scopes,
    to_millionths,
    to_percent,
)
from mpsd.leases.rules.group_shares import Group, GroupMember
from mpsd.leases.rules.queue import Demand
from mpsd.leases.rules.sm_pools import Absent, ClientShare, SmPool, is_group, pool_key
from mpsd.model.lease import Lease
from mpsd.model.process import ProcessId

GROUP_LEASES = 4096  # of a group: a deal looks at all of them


class ClientUsage(Struct, frozen=True):
    """What a client with a lease takes, and what the account needs after the lease has ended.

    owner: the user whose quotas apply to the lease; share and part in millionths of a percent (sm_pools.py); memory_bytes by
    GPU.
    """

    lease_id: int
    pool: str
    gpus: tuple[str, ...]
    owner: Owner | None
    share: int
    part: int
    memory_bytes: Mapping[str, int]


class Account:
    """Guards that the account is what active leases have reserved and living clients hold, each counted once."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.places: dict[str, int] = {}  # processes by lease id, as budgets.Limits wants it
        self.pools: dict[str, SmPool] = {}
        self._has_group_grown = False
        self._pool_of_lease: dict[int, str] = {}
        self._clients: dict[ProcessId, tuple[Owner | None, ClientUsage | None]] = {}
        self._retained: dict[ProcessId, int | None] = {}  # of these, the ended ones: the lease whose place each keeps

    def know(self, lease: Lease, owner: Owner | None) -> None:
        """Enter a lease, active or waiting."""
        self.ledger.hold(("known", lease.id), dict.fromkeys(quota_scopes(owner, AmountKind.LEASES), 1))

    def reserve(self, lease: Lease, gpus: tuple[str, ...], owner: Owner | None, now: float) -> None:
        """Enter a lease that becomes active."""
        key = pool_key(lease, gpus)
        pool = self.pools.setdefault(key, SmPool(gpus, owner))
        pool.add_lease(lease.id, to_millionths(lease.spec.sm_percent))
        if is_group(key):
            self._has_group_grown = True
            pool.absent[lease.id] = Absent(lease.spec.processes, now)
        self._pool_of_lease[lease.id] = key
        self.places[str(lease.id)] = lease.spec.processes
        amounts = lease_amounts(lease, gpus, owner)
        for scope in pool.amounts():  # the pool counts the SMs
            amounts.pop(scope, None)
        self.ledger.hold(("lease", lease.id), amounts)
        self._settle(key)

    def forget(self, lease_id: int) -> None:
        """Remove an ended lease; what its clients keep stays counted until they end too."""
        self.ledger.drop(("known", lease_id))
        self.ledger.drop(("lease", lease_id))
        self.places.pop(str(lease_id), None)
        if (key := self._pool_of_lease.pop(lease_id, None)) is not None:
            for process in self.pools[key].end_lease(lease_id):
                self._keep(process)
            self._settle(key)
        for process in [process for process, kept_in in self._retained.items() if kept_in == lease_id]:
            self._retained[process] = None
            self._keep(process)

    def start(self, process: ProcessId, owner: Owner | None, lease: Lease | None, held: ClientUsage | None) -> None:
        """Enter a client that is let in.  owner: the user whose quota of clients applies.  lease: None without one."""
        self.ledger.hold(("client", process), client_amounts(owner, lease))
        self._clients[process] = owner, held
        if held is None:
            return
        pool = self.pools.setdefault(held.pool, SmPool(held.gpus, held.owner))
        pool.add_client(process, ClientShare(held.lease_id, held.share, held.part, is_kept=lease is None))
        if lease is None:
            self._keep(process)
        self._settle(held.pool)

    def retain(self, process: ProcessId, now: float) -> None:
        """Count only the memory of an ended client with a lease, until `end`: by its place in the lease, or in addition."""
        held = self._clients[process][1]
        assert held is not None, "a client without a lease has no memory of it"
        place = place_in(held.lease_id)
        limit = self.places.get(place.whose)  # None: its lease has ended
        is_detached = limit is None or self.ledger.used.get(place, 0) > limit  # over it: an earlier mpsd detached one
        self._retained[process] = None if is_detached else held.lease_id
        if is_detached:
            self._keep(process)
        else:
            ended = place._replace(kind=AmountKind.MEMORY)  # for messages
            self.ledger.hold(("client", process), {place: 1, ended: 1})
        self._end_share(process, held, now)

    def detach(self, process: ProcessId, limits: ScopeLimits, wanted: Demand) -> bool:
        """Count a retained client's memory in addition to its lease's, if the budgets have room; then its place is free."""
        held = self._clients[process][1]
        assert held is not None
        if self._retained[process] is None or not wanted.leaves_room_for(_memory_of(held), limits, self.ledger.used):
            return False
        self._retained[process] = None
        self._keep(process)
        return True

    def end(self, process: ProcessId, now: float) -> None:
        _, held = self._clients.pop(process, (None, None))
        self.ledger.drop(("client", process))
        self.ledger.drop(("kept", process))
        if held is not None and process not in self._retained:
            self._end_share(process, held, now)
        self._retained.pop(process, None)

    def take_freed(self) -> tuple[set[Scope], bool]:
        """Return the scopes with a decrease since the last call, and whether a group has more to deal."""
        freed, self.ledger.freed = self.ledger.freed, set()
        has_group_grown, self._has_group_grown = self._has_group_grown, False
        return freed, has_group_grown

    def has_room_in_group(self, lease: Lease, gpus: tuple[str, ...]) -> bool:
        pool = self.pools.get(pool_key(lease, gpus))
        return pool is None or len(pool.leases) < GROUP_LEASES

    def pool_of(self, lease_id: int) -> tuple[str, SmPool]:
        key = self._pool_of_lease[lease_id]
        return key, self.pools[key]

    def group_of(self, key: str, describe: Callable[[int, Sequence[int]], GroupMember]) -> Group:
        """Return a pool as a policy sees it; `describe` describes one lease, from what its clients hold."""
        pool = self.pools[key]
        held = pool.held()
        members = [describe(lease_id, held.get(lease_id, ())) for lease_id in pool.leases]
        return Group(to_percent(pool.reserved), members, to_percent(pool.debt))

    def _keep(self, process: ProcessId) -> None:
        """Count the memory for the client itself, since its lease no longer counts; the pool counts its share."""
        owner, held = self._clients[process]
        self.ledger.hold(("client", process), {} if process in self._retained else client_amounts(owner, None))
        if held is not None:
            scopes = {Scope(ScopeLevel.MACHINE, AmountKind.CLIENTS, gpu=gpu): 1 for gpu in held.gpus}  # for messages
            self.ledger.hold(("kept", process), scopes | _memory_of(held))

    def _end_share(self, process: ProcessId, held: ClientUsage, now: float) -> None:
        self.pools[held.pool].end_client(process, now)
        self._settle(held.pool)

    def _settle(self, key: str) -> None:
        pool = self.pools[key]
        self.ledger.hold(("pool", key), pool.amounts())
        if pool.is_empty:
            del self.pools[key]


def _memory_of(held: ClientUsage) -> dict[Scope, int]:
    return {scope: size for gpu, size in held.memory_bytes.items() for scope in memory_scopes(held.owner, gpu)}
