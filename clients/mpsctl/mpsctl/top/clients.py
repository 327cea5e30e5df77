"""The model of `top`: the clients and counts that it shows, made from mpsd's answers.  Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd_client import values


@dataclass(frozen=True, slots=True)
class Row:
    """One client.  asked: requested by its lease as a whole; held: granted to this process; faults: faults of its domain.

    sm_reserved_count: SMs of each GPU that its lease reserves; sm_held_count: SMs that this process has."""

    pid: int
    start_time: int
    uid: int | None
    user: str | None
    container: str
    domain: str | None
    lease_id: int | None
    sm_asked_percent: float | None
    sm_held_percent: float | None
    sm_reserved_count: int | None
    sm_held_count: int | None
    memory_asked_bytes: int | None
    memory_held_bytes: int | None
    state: str
    faults: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The facts that `top` requests per client or per lease, and caches."""

    container: str = ""
    sm_percent: float | None = None
    sm_count: int | None = None
    memory_bytes: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class TopView:
    """One view.  states: the number of clients in each state.  clients: the first ones in order, as many as fit."""

    time: float
    status: values.Status
    states: Mapping[str, int]
    clients: tuple[Row, ...]

    @property
    def hidden(self) -> int:
        return sum(self.states.values()) - len(self.clients)


_ORDER = {"running": 0, "starting": 1, "waiting": 2}


def in_order(clients: Iterable[values.MpsClient]) -> list[values.MpsClient]:
    """Sort clients by state, running ones first, then by domain and pid, so that a row keeps its place."""
    return sorted(clients, key=lambda client: (_ORDER.get(client.state, 9), client.domain or "", client.pid))


def row(client: values.MpsClient, user: str | None, own: Lookup, lease: Lookup, faults: Mapping[str | None, int]) -> Row:
    return Row(
        pid=client.pid,
        start_time=client.start_time,
        uid=client.uid,
        user=user,
        container=own.container,
        domain=client.domain,
        lease_id=client.lease_id,
        sm_asked_percent=lease.sm_percent,
        sm_held_percent=client.sm_percent,
        sm_reserved_count=lease.sm_count,
        sm_held_count=client.sm_count,
        memory_asked_bytes=_most(lease.memory_bytes),
        memory_held_bytes=_most(client.memory_bytes),
        state=client.state,
        faults=faults.get(client.domain, 0) if client.domain else 0,
    )


def _most(sizes: Mapping[str, int] | None) -> int | None:
    """Return the largest size of all GPUs, since a row shows one number; None without sizes."""
    return max(sizes.values()) if sizes else None


def by_domain(faults: Iterable[values.Incident]) -> Counter[str | None]:
    return Counter(fault.domain for fault in faults)
