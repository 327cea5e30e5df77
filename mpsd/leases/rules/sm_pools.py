"""Count what leases have reserved of the SMs, and what their clients hold: the two differ when leases end first, or when shares
are dealt in a group.

A *pool* is the leases among which shares move: those of one group on the same GPUs, or one lease alone.  A pool takes of each
of its GPUs:

    max(reserved, held + debt) + kept

reserved: by its active leases.  held: by their clients.  kept: by clients whose lease has ended, up to their own part.  debt:
what such clients have beyond that part, which belongs to the others.  So nothing is counted twice, and no end of a lease or
client ever makes the sum larger.  Amounts are millionths of a percent.
Prose: docs/leases.md, "When a lease ends first".
"""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from mpsd.leases.rules.budgets import Owner, Scope, group_key, sm_scopes
from mpsd.model.lease import Lease
from mpsd.model.process import ProcessId

_GROUP = "group:"


class ClientShare(Struct):
    """The share of one client: `share` now, `part` by its lease alone."""

    lease_id: int
    share: int
    part: int
    is_kept: bool = False  # its lease has ended


class SmPool(Struct):
    """Guards what the leases of one group on the same GPUs, or one lease, have reserved and their clients hold.

    The sums change with each lease and client: thousands of clients may ask for them in one moment.
    """

    gpus: tuple[str, ...]
    owner: Owner | None
    leases: dict[int, int] = field(default_factory=dict)
    clients: dict[ProcessId, ClientShare] = field(default_factory=dict)
    dealt: dict[int, float] = field(default_factory=dict)  # percent of a part, by the last deal
    absent: dict[int, "Absent"] = field(default_factory=dict)  # of a group's leases, by id
    reserved: int = 0
    debt: int = 0
    _held: int = 0
    _kept: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.leases and not self.clients

    def taken(self) -> int:
        return max(self.reserved, self._held + self.debt) + self._kept

    def free(self) -> int:
        """Return what a client of these leases may still start with."""
        return self.reserved - self._held - self.debt

    def held(self) -> dict[int, list[int]]:
        """Return the shares of the clients, by lease."""
        found: dict[int, list[int]] = {}
        for each in self.clients.values():
            if not each.is_kept:
                found.setdefault(each.lease_id, []).append(each.share)
        return found

    def amounts(self) -> dict[Scope, int]:
        taken = self.taken()
        return {scope: taken for gpu in self.gpus for scope in sm_scopes(self.owner, gpu)} if taken else {}

    def add_lease(self, lease_id: int, amount: int) -> None:
        self.leases[lease_id] = amount
        self.reserved += amount

    def end_lease(self, lease_id: int) -> list[ProcessId]:
        """Remove the lease; return its clients, which keep what they have."""
        self.reserved -= self.leases.pop(lease_id, 0)
        self.dealt.pop(lease_id, None)
        self.absent.pop(lease_id, None)
        kept = [process for process, each in self.clients.items() if each.lease_id == lease_id and not each.is_kept]
        for process in kept:
            self._count(self.clients[process], -1)
            self.clients[process].is_kept = True
            self._count(self.clients[process], 1)
        return kept

    def add_client(self, process: ProcessId, holding: ClientShare) -> None:
        self.clients[process] = holding
        self._count(holding, 1)
        if not holding.is_kept and holding.lease_id in self.absent:
            self.absent[holding.lease_id].take()

    def end_client(self, process: ProcessId, now: float) -> None:
        holding = self.clients.pop(process)
        self._count(holding, -1)
        if not holding.is_kept and holding.lease_id in self.absent:
            self.absent[holding.lease_id].add(now)

    def _count(self, holding: ClientShare, sign: int) -> None:
        if holding.is_kept:
            self._kept += sign * min(holding.share, holding.part)
            self.debt += sign * max(0, holding.share - holding.part)
        else:
            self._held += sign * holding.share

    def recent(self, lease_id: int, since: float) -> int:
        """Return how many parts of this lease have lost their process only after `since`."""
        return self.absent[lease_id].after(since) if lease_id in self.absent else 0


class Absent:
    """Guards since when each part of a lease has been without a process: counts by time, the longest absent first."""

    def __init__(self, parts: int, now: float) -> None:
        self._since: deque[tuple[float, int]] = deque([(now, parts)])

    def add(self, now: float) -> None:
        self._since.append((now, 1))

    def take(self) -> None:
        """Count a process for the part that has been absent longest."""
        if self._since:
            at, count = self._since.popleft()
            if count > 1:
                self._since.appendleft((at, count - 1))

    def after(self, since: float) -> int:
        return sum(count for at, count in self._since if at > since)


def pool_key(lease: Lease, gpus: Iterable[str]) -> str:
    """Return the key of the leases among which the lease's share may move."""
    if lease.spec.group:
        return f"{_GROUP}{group_key(lease)}@{','.join(sorted(gpus))}"
    return f"lease:{lease.id}"


def is_group(key: str) -> bool:
    return key.startswith(_GROUP)
