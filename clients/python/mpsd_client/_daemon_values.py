"""The results about mpsd itself: its status, GPUs, domains, limits, events.  `make docs` makes this module."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hello:
    """mpsd's greeting: its view of this process, and its protocol version, limits and methods."""

    version: int  # 1
    minor: int  # 0; counts the releases that have added to it
    program: str  # mpsd and its version
    uid: int  # your uid as mpsd sees it
    pid: int  # your pid as mpsd sees it; 0: mpsd's pid namespace does not have you
    is_operator: bool
    idle_seconds: float  # how long you may be silent, unless you wait for events
    datagram_bytes: int  # the largest datagram, either way
    page: int  # the largest `limit` of a list
    methods: tuple[str, ...]  # the methods of this mpsd


@dataclass(frozen=True, slots=True)
class Keeper:
    """The processes that hold the arenas' memory."""

    state: str  # "works", or why not all do
    pid: int | None  # of the first one
    pids: tuple[int, ...]
    descriptors: int  # how many they hold


@dataclass(frozen=True, slots=True)
class Status:
    """mpsd's status."""

    version: str  # of mpsd
    pid: int  # of mpsd
    uid: int  # that mpsd runs as
    state: str
    started_at: float
    uptime_seconds: float
    # mpsd is stopping, and ends the work of clients that are still there then; None: it waits for them, or is not stopping
    ends_at: float | None
    devices: int
    domains: Mapping[str, int]  # how many domains are in each state
    clients: int  # places taken in all domains
    leases_active: int
    leases_queued: int
    queue: int  # leases and clients that wait
    arenas: int
    keeper: Keeper | None  # of the processes that hold the arenas' memory
    services: int
    services_unserved: int  # those with members and without an active one
    connections: int  # to this socket
    subscribers: int  # connections that wait for events
    events_lost: int  # events that slow subscribers did not get, since the start
    audit_lines_lost: int  # audit lines that could not be written, since the start
    # other facts, such as `backend`, or `exposed_domains`, to which every user can connect past mpsd; for people, not for
    # programs
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether mpsd would serve a client that comes now."""

    ok: bool  # a client that comes now would be served
    state: str
    uptime_seconds: float
    problems: tuple[str, ...]  # why not; and what ails present clients and arenas, which leaves `ok` true


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the daemon."""

    ordinal: int  # in the daemon's order
    uuid: str
    name: str
    total_bytes: int
    pci_bus_id: str
    compute_mode: str
    sm_count: int | None  # None: not known
    sm_least: int  # no client has fewer SMs than these (leases.md, "SMs come in steps")
    sm_step: int  # of more, it has whole multiples of this


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the vendor's."""

    pid: int
    uid: int
    status: str  # `INITIALIZING`, `ACTIVE` or `FAULT`
    clients: int  # how many


@dataclass(frozen=True, slots=True)
class Domain:
    """A fault domain."""

    name: str
    number: int  # order of creation
    state: str  # "starting", "ready", "fault", "silent", "contained", "recycling", "draining", "stopping", "dead": domains.md
    gpus: tuple[str, ...]  # those it was started with
    uid: int | None  # the user it serves; None: no user now
    clients: int  # places taken: contexts, and clients on their way
    capacity: int  # places
    is_spare: bool  # it has not served a client yet
    servers: tuple[Server, ...]  # the vendor's servers in it
    ends_at: float | None  # when mpsd ends the clients that are left in a contained domain; None: never
    trouble: str  # why it takes no client, as far as that is known; may be empty


@dataclass(frozen=True, slots=True)
class Drained:
    """A domain that is being emptied."""

    name: str
    clients: int  # places still taken


@dataclass(frozen=True, slots=True)
class Recycled:
    """A domain whose servers are being replaced."""

    name: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of clients without a lease."""

    default_active_thread_percentage: float  # share of the SMs
    default_device_pinned_mem_limit: Mapping[str, int]  # no entry: no limit
    default_client_priority: int  # 0 normal, 1 below normal
