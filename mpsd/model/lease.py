"""Leases: the requests of schedulers, the identities of clients, and the grants that follow.

Frozen values, no I/O, no clock.  Times are seconds since the epoch, because they outlive mpsd.  Prose: docs/leases.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct, field

from mpsd.model.process import ProcessId

FULL_PERCENT = 100.0
LEAST_PERCENT = 1e-4  # of the SMs, that each process of a lease may ask for; the hardware gives more (model/sm_steps.py)
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


class DomainPolicy(StrEnum):
    """The kind of fault domain for the clients of a lease."""

    SHARED = "shared"  # with all other clients
    OWN = "own"  # a domain for this lease alone
    GROUP = "group"  # a domain for the leases of one group alone
    QUARANTINE = "quarantine"  # a domain for all clients in quarantine, and no others


class SelectorKind(StrEnum):
    """How a lease recognises its clients, the most precise way first."""

    PID = "pid"  # one process, in mpsd's pid namespace; its start time distinguishes it from later ones
    TOKEN = "token"  # MPSD_LEASE in the client's environment; knowing the token gives the right to use the lease
    CGROUP = "cgroup"  # a cgroup and everything below it: a container, a Slurm job, a systemd unit
    UID = "uid"


class LeaseState(StrEnum):
    QUEUED = "queued"  # does not fit yet
    ACTIVE = "active"


class Refusal(StrEnum):
    """What happens to a client that may not run (docs/relay.md: one that is merely disconnected runs without MPS)."""

    WAIT = "wait"  # it stays in the queue
    ERROR = "error"  # its CUDA gets an error
    END = "end"  # the process is ended, before it has a context


class Selector(Struct, frozen=True):
    """A rule for clients.

    `value`: a decimal pid or uid, a token, a cgroup path or an identifier in one (leases/rules/matching.py).
    """

    kind: SelectorKind
    value: str
    start_time: int = 0  # of a pid

    def __repr__(self) -> str:
        """Leave out a token: printed values end up in logs."""
        value = "..." if self.kind is SelectorKind.TOKEN else self.value
        return f"Selector({self.kind.value}, {value!r}, {self.start_time})"


class LeaseSpec(Struct, frozen=True):
    """The request for a lease.  Shares and limits are the whole lease's, and are divided equally among `processes`.

    gpus: UUIDs; empty: every GPU of the daemon.  sm_percent: of each of these GPUs, at most 100; 0 reserves no SMs, and its
    clients get what no lease has reserved when they start.  sm_asked_percent: the requested share, if sm_percent is what the
    hardware gives for it (model/sm_steps.py).  memory_bytes: by UUID; no entry, no limit.  priority: 0 normal, 1 below
    normal (the vendor's client priority, and the queue's).
    request_key: its owner's name for the request; a repeated request with the same key makes no other lease.
    group: of DomainPolicy.GROUP, and whose members inherit each other's shares.  wait_seconds: how long it may be QUEUED.
    """

    name: str
    selector: Selector
    gpus: tuple[str, ...] = ()
    sm_percent: float = FULL_PERCENT
    memory_bytes: Mapping[str, int] = field(default_factory=lambda: NO_LIMITS)
    priority: int = 0
    domain: DomainPolicy = DomainPolicy.SHARED
    group: str = ""
    processes: int = 1
    ttl_seconds: float | None = None  # None: until it is released
    wait_seconds: float = 0.0
    level: str = "interactive"  # of the elastic policy: interactive or batch
    sm_asked_percent: float | None = None
    request_key: str = ""


class Lease(Struct, frozen=True):
    """A lease that was acknowledged.  `id` is never reused; `owner_uid` made it.

    for_all_users: an operator made it, and it serves processes of any user; other leases serve their owner's alone.
    """

    id: int
    owner_uid: int
    spec: LeaseSpec
    state: LeaseState
    created_at: float
    expires_at: float | None
    for_all_users: bool = False


class Identity(Struct, frozen=True):
    """The identity of a client, from the kernel.

    cgroups: the path in each hierarchy.  token: from the environment it was started with.
    """

    process: ProcessId | None
    uid: int
    gid: int = 0
    cgroups: tuple[str, ...] = ()
    token: str = ""
    container: str = ""  # from the cgroup path, for people: a container id, a Slurm job, a systemd unit

    def __repr__(self) -> str:
        """Leave out the token: printed values end up in logs."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "token")
        return f"Identity({', '.join(shown)})"


class Grant(Struct, frozen=True):
    """What one client process may use, for its whole life.  `rule` describes in words which rule granted it.

    sm_percent: 100 is no limit.  memory_bytes: by GPU UUID; no entry, no limit.  gpus: as in LeaseSpec.
    """

    rule: str
    lease_id: int | None = None
    gpus: tuple[str, ...] = ()
    sm_percent: float = FULL_PERCENT
    memory_bytes: Mapping[str, int] = field(default_factory=lambda: NO_LIMITS)
    priority: int = 0
    domain: DomainPolicy = DomainPolicy.SHARED
    domain_key: str = ""  # which one, if it is not shared: the lease's id, the group's name
