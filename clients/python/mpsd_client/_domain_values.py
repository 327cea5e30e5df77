"""The values in mpsd's answers about itself: domains, devices, limits, faults, its own state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    uid: int
    status: str
    clients: int


@dataclass(frozen=True, slots=True)
class Domain:
    """A fault domain."""

    name: str
    number: int
    state: str
    gpus: tuple[str, ...]
    uid: int | None
    clients: int
    capacity: int
    is_spare: bool
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    name: str
    clients: int


@dataclass(frozen=True, slots=True)
class Recycled:
    name: str


@dataclass(frozen=True, slots=True)
class Device:
    ordinal: int
    uuid: str
    name: str
    total_bytes: int
    pci_bus_id: str
    compute_mode: str
    sm_count: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    default_active_thread_percentage: float
    default_device_pinned_mem_limit: Mapping[str, int]
    default_client_priority: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An event about a fault; `Incident` is the fault itself."""

    id: int
    topic: str
    time: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Keeper:
    """The processes that hold the arenas' memory.  state: "works", or why some do not work.  pid: of the first one."""

    state: str
    pid: int | None
    descriptors: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """mpsd's status.  ends_at: when a stopping mpsd ends the work of the remaining clients; None: it waits for them."""

    version: str
    pid: int
    uid: int
    state: str
    started_at: float
    uptime_seconds: float
    devices: int
    domains: Mapping[str, int]
    clients: int
    leases_active: int
    leases_queued: int
    queue: int
    connections: int
    subscribers: int
    events_lost: int
    audit_lines_lost: int
    facts: Mapping[str, Any]
    arenas: int = 0
    keeper: Keeper | None = None
    services: int = 0
    services_unserved: int = 0
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    state: str
    uptime_seconds: float
    problems: tuple[str, ...]
