"""Leases and what comes of them: what a scheduler asked for, who a client is, what that client was granted.

Frozen values, no I/O, no clock.  Times are seconds since the epoch, because they outlive mpsd.  Prose: docs/leases.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from mpsd.model import ProcessId

FULL_PERCENT = 100.0
LEAST_PERCENT = 1e-4  # of the SMs, that each process of a lease may ask for; the hardware gives more (policy/sm_steps.py)
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


class DomainPolicy(StrEnum):
    """Which fault domain the clients of a lease go to."""

    SHARED = "shared"  # with everybody
    OWN = "own"  # one that serves this lease alone
    GROUP = "group"  # one that serves the leases of one group alone
    QUARANTINE = "quarantine"  # one that serves all who are in quarantine, and nobody else


class SelectorKind(StrEnum):
    """How a lease recognises its clients; the order is that of precision, the most precise first."""

    PID = "pid"  # one process, in mpsd's pid namespace, told apart by its start time from later ones
    TOKEN = "token"  # MPSD_LEASE in the client's environment; knowing the token is the right to it
    CGROUP = "cgroup"  # a cgroup and everything below it: a container, a Slurm job, a systemd unit
    UID = "uid"


class LeaseState(StrEnum):
    QUEUED = "queued"  # does not fit yet
    ACTIVE = "active"


class Refusal(StrEnum):
    """What happens to a client that may not run (FACTS: one that is merely disconnected runs without MPS)."""

    WAIT = "wait"  # it stays in the queue
    ERROR = "error"  # its CUDA gets an error
    END = "end"  # the process is ended, before it has a context


@dataclass(frozen=True, slots=True)
class Selector:
    """`value`: a decimal pid or uid, a token, a cgroup path or an identifier in one (policy/matching.py)."""

    kind: SelectorKind
    value: str
    start_time: int = 0  # of a pid

    def __repr__(self) -> str:
        """Without a token: what is printed ends up in logs."""
        value = "..." if self.kind is SelectorKind.TOKEN else self.value
        return f"Selector({self.kind.value}, {value!r}, {self.start_time})"


@dataclass(frozen=True, slots=True)
class LeaseSpec:
    """What was asked for.  Shares and limits are those of the whole lease, and are divided equally among `processes`.

    gpus: UUIDs; empty: every GPU of the daemon.  sm_percent: of each of these GPUs, at most 100; 0 reserves no SMs, and its
    clients have what no lease has reserved when they start.  sm_asked_percent: what was asked, where sm_percent is what the
    hardware gives for it (policy/sm_steps.py).  memory_bytes: by UUID; no entry, no limit.  priority: 0 normal, 1 below
    normal (the vendor's client priority, and the queue's).
    request_key: its owner's word for the request that made it; the same word again makes no other lease.
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


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was acknowledged.  `id` is never used twice; `owner_uid` made it.

    for_all_users: it was made by an operator, and serves processes of any user; others serve their owner's alone.
    """

    id: int
    owner_uid: int
    spec: LeaseSpec
    state: LeaseState
    created_at: float
    expires_at: float | None
    for_all_users: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, as the kernel tells.

    cgroups: the path of each hierarchy it is in.  token: from the environment it was started with.
    """

    process: ProcessId | None
    uid: int
    gid: int = 0
    cgroups: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    container: str = ""  # what the cgroup path says, for people: a container id, a Slurm job, a systemd unit


@dataclass(frozen=True, slots=True)
class Grant:
    """What one client process may use, for its whole life.  `rule` says in words which rule gave it that.

    sm_percent: 100 is no limit.  memory_bytes: by GPU UUID; no entry, no limit.  gpus: as in LeaseSpec.
    """

    rule: str
    lease_id: int | None = None
    gpus: tuple[str, ...] = ()
    sm_percent: float = FULL_PERCENT
    memory_bytes: Mapping[str, int] = field(default_factory=lambda: NO_LIMITS)
    priority: int = 0
    domain: DomainPolicy = DomainPolicy.SHARED
    domain_key: str = ""  # which one, where it is not shared: the lease's id, the group's name

    @property
    def is_limited(self) -> bool:
        return self.sm_percent < FULL_PERCENT or bool(self.memory_bytes) or self.priority > 0
