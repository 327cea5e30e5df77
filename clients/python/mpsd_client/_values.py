"""What mpsd answers, as frozen values.  Units are in the names; times without one are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mpsd_client._domain_values import Device as Device
from mpsd_client._domain_values import Domain as Domain
from mpsd_client._domain_values import Drained as Drained
from mpsd_client._domain_values import Fault as Fault
from mpsd_client._domain_values import Health as Health
from mpsd_client._domain_values import Keeper as Keeper
from mpsd_client._domain_values import Limits as Limits
from mpsd_client._domain_values import Recycled as Recycled
from mpsd_client._domain_values import Server as Server
from mpsd_client._domain_values import Status as Status
from mpsd_client._fault_values import Deed as Deed
from mpsd_client._fault_values import Evidence as Evidence
from mpsd_client._fault_values import Guarded as Guarded
from mpsd_client._fault_values import Incident as Incident
from mpsd_client._fault_values import IncidentReport as IncidentReport
from mpsd_client._fault_values import Party as Party
from mpsd_client._fault_values import Reported as Reported
from mpsd_client._fault_values import Standing as Standing
from mpsd_client._fault_values import Xid as Xid
from mpsd_client._service_values import Enlisted as Enlisted
from mpsd_client._service_values import HandedOver as HandedOver
from mpsd_client._service_values import Instruction as Instruction
from mpsd_client._service_values import KeptState as KeptState
from mpsd_client._service_values import Loss as Loss
from mpsd_client._service_values import Member as Member
from mpsd_client._service_values import Promotion as Promotion
from mpsd_client._service_values import Service as Service
from mpsd_client._service_values import ServiceSettings as ServiceSettings
from mpsd_client._service_values import StateKept as StateKept
from mpsd_client._vault_values import Arena as Arena
from mpsd_client._vault_values import ArenaLayout as ArenaLayout
from mpsd_client._vault_values import ArenaUse as ArenaUse
from mpsd_client._vault_values import Committed as Committed
from mpsd_client._vault_values import RoomMade as RoomMade
from mpsd_client._vault_values import Taken as Taken

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who mpsd takes us for, and what it speaks."""

    version: int
    minor: int
    program: str
    uid: int
    pid: int
    is_operator: bool
    idle_seconds: float
    datagram_bytes: int
    page: int
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Selector:
    """How a lease recognises its clients.  `value` is None where we may not know it: another user's token."""

    kind: str
    value: str | None
    start_time: int = 0

    @classmethod
    def of_self(cls) -> "Selector":
        """This process: mpsd knows which it is, whatever namespace it is in."""
        return cls("pid", "self")

    @classmethod
    def of_pid(cls, pid: int, start_time: int = 0) -> "Selector":
        """As mpsd's pid namespace counts.  start_time: field 22 of /proc/PID/stat; 0: of the process that has the pid now."""
        return cls("pid", str(pid), start_time)

    @classmethod
    def of_token(cls, token: str) -> "Selector":
        """Processes with MPSD_LEASE=token in their environment."""
        return cls("token", token)

    @classmethod
    def of_cgroup(cls, path: str) -> "Selector":
        """Processes in this cgroup or below, or in a container, job or unit of this name."""
        return cls("cgroup", path)

    @classmethod
    def of_uid(cls, uid: int) -> "Selector":
        return cls("uid", str(uid))


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    owner_uid: int
    for_all_users: bool
    state: str
    created_at: float
    expires_at: float | None
    clients: int
    name: str
    selector: Selector
    gpus: tuple[str, ...]
    sm_percent: float
    memory_bytes: Mapping[str, int]
    priority: int
    domain: str
    group: str
    processes: int
    ttl_seconds: float | None
    wait_seconds: float
    level: str
    sm_reserved_percent: float | None = None  # what the hardware gives for sm_percent; None: an mpsd before minor 4
    sm_count: int | None = None  # the same as SMs of each GPU; None where they differ in it, or it is not known


@dataclass(frozen=True, slots=True)
class Waiting:
    """One in the queue: a lease, or a client (then `pid`)."""

    position: int
    uid: int
    lease_id: int | None
    pid: int | None
    start_time: int | None
    reason: str
    waited_seconds: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that uses CUDA through mpsd.  state: waiting, starting or running.

    watched: its memory faults are seen exactly.  shield: low addresses are shielded in it.  held: its end waits for its work.
    """

    pid: int
    start_time: int
    uid: int | None
    state: str
    domain: str | None
    server_pid: int | None
    lease_id: int | None
    sm_percent: float | None
    memory_bytes: Mapping[str, int] | None
    watched: bool = False
    shield: bool = False
    held: bool = False
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a client may use; `rule` says in words why."""

    rule: str
    lease_id: int | None
    gpus: tuple[str, ...]
    sm_percent: float
    memory_bytes: Mapping[str, int]
    priority: int
    domain_policy: str
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """In the queue."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Why:
    """A client, what it was granted by which rule, and what it waits for."""

    pid: int
    start_time: int
    uid: int | None
    state: str
    domain: str | None
    server_pid: int | None
    container: str
    cgroups: tuple[str, ...]
    grant: Grant | None
    queue: Place | None
    watched: bool = False
    shield: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Terminated:
    pid: int
    start_time: int
    server_pid: int
    domain: str


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """What was done with one process, step by step; `why` it was left, where it has not ended."""

    pid: int
    start_time: int
    domain: str | None
    steps: tuple[str, ...]
    has_ended: bool
    why: str | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """count: of the processes dealt with; of very many, not all are shown.  others: clients of other users, not touched."""

    count: int
    others: int
    processes: tuple[StoppedProcess, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    pid: int
    start_time: int
    domain: str


@dataclass(frozen=True, slots=True)
class Event:
    topic: str
    time: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """So many events are missing here, because we were too slow."""

    count: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; `next` is where the rest begins, None at the end."""

    items: tuple[T, ...]
    next: int | None
