"""The values in mpsd's answers, frozen.  Units are in the names; times without a unit are seconds since the epoch."""

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
    """mpsd's greeting: its view of this process, and its protocol version, limits and methods."""

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
    """The rule by which a lease matches clients.  `value` is None if this user may not see it: another user's token."""

    kind: str
    value: str | None
    start_time: int = 0

    @classmethod
    def of_self(cls) -> "Selector":
        """Select this process; mpsd identifies it across pid namespaces."""
        return cls("pid", "self")

    @classmethod
    def of_pid(cls, pid: int, start_time: int = 0) -> "Selector":
        """Select a process by its pid in mpsd's pid namespace.  start_time: field 22 of /proc/PID/stat; 0: that of the process
        with this pid now."""
        return cls("pid", str(pid), start_time)

    @classmethod
    def of_token(cls, token: str) -> "Selector":
        """Select processes with MPSD_LEASE=token in their environment."""
        return cls("token", token)

    @classmethod
    def of_cgroup(cls, path: str) -> "Selector":
        """Select processes in this cgroup or below, or in a container, job or unit of this name."""
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
    sm_reserved_percent: float | None = None  # the share that the hardware grants for sm_percent; None: mpsd before minor 4
    sm_count: int | None = None  # the SMs of each GPU for that share; None if the GPUs differ, or if unknown


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry of the queue: a lease, or a client (then `pid` is set)."""

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

    watched: mpsd sees its memory faults exactly.  shield: mpsd shields its low addresses.  held: mpsd holds its GPU memory
    beyond its end, so that its running work can finish.
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
    """The resources that a client may use; `rule` is the reason as text."""

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
    """A place in the queue."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Why:
    """A client, its grant and the rule behind it, and its place in the queue."""

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
    """The result of stopping one process.  steps: what mpsd did, in order.  why: the reason if the process has not ended."""

    pid: int
    start_time: int
    domain: str | None
    steps: tuple[str, ...]
    has_ended: bool
    why: str | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a stop.  count: number of processes handled; `processes` may list fewer.  others: untouched clients of
    other users."""

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
    """Marks missing events: `count` were dropped because this client was too slow."""

    count: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `next` is where the rest begins, None at the end."""

    items: tuple[T, ...]
    next: int | None
