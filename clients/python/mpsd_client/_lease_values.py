"""The results about leases, the queue and clients.  `make docs` makes this module."""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd_client._selector import Selector


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease."""

    id: int  # never used twice
    owner_uid: int  # the owner
    for_all_users: bool  # an operator made it for processes of any user; otherwise it serves those of its owner alone
    state: str  # queued: it does not fit yet
    created_at: float
    expires_at: float | None  # None: when it is released; or it is queued, and its time has not begun
    clients: int  # processes that run under it
    name: str
    selector: Selector  # `value` is None where it is a token and not yours
    gpus: tuple[str, ...]  # empty: every GPU
    sm_percent: float  # as asked; 0: it reserves none, and its clients have what no lease has reserved
    sm_reserved_percent: float  # the reserved share, as the hardware gives it
    sm_count: int | None  # the same as SMs of each of its GPUs; None: they differ in it, or it is not known
    memory_bytes: Mapping[str, int]
    priority: int
    domain: str  # as asked
    group: str
    processes: int
    ttl_seconds: float | None
    wait_seconds: float
    level: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry of the queue: a lease, or a client."""

    position: int  # 1 is the next
    uid: int  # the owner
    lease_id: int | None  # the lease that waits, or that the client's is
    pid: int | None  # None: it is the lease itself that waits
    start_time: int | None
    reason: str  # the reason for waiting
    waited_seconds: float
    deadline: float | None  # when it is refused; None: never


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that uses CUDA through mpsd."""

    pid: int  # in mpsd's pid namespace
    start_time: int  # field 22 of /proc/PID/stat; with the pid it is one process for ever
    uid: int | None  # None: it has ended
    state: str  # waiting: in the queue, for a fault domain too; starting: on its way to a server; running: it has a context
    domain: str | None  # where it was placed
    server_pid: int | None  # the vendor's server that it runs in
    lease_id: int | None  # None: without a lease
    sm_percent: float | None  # the granted share; 100: no limit; None: it waits, or was not admitted by this mpsd
    sm_count: int | None  # the same as SMs of each of its GPUs; None: likewise, or they differ in it, or it is not known
    memory_bytes: Mapping[str, int] | None  # no entry: no limit
    watched: bool  # its memory faults are seen exactly: who, where, within milliseconds (faults.md)
    shield: bool  # low addresses are shielded in it: a null access does nothing
    held: bool  # its end waits until its work on the GPU has been ended


@dataclass(frozen=True, slots=True)
class Grant:
    """The resources that a client may use."""

    rule: str  # which rule gave it, in words
    lease_id: int | None
    gpus: tuple[str, ...]  # empty: every GPU
    sm_percent: float
    sm_count: int | None
    memory_bytes: Mapping[str, int]
    priority: int
    domain_policy: str


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Why(MpsClient):
    """A client, its grant and the rule behind it, and its place in the queue."""

    container: str  # from its cgroup: a container, a job, a unit; may be empty
    cgroups: tuple[str, ...]  # its paths, one for each hierarchy
    grant: Grant | None  # None: it was not admitted
    queue: Place | None  # None: it does not wait


@dataclass(frozen=True, slots=True)
class Terminated:
    """A client whose work on the GPU was ended."""

    pid: int
    start_time: int
    server_pid: int  # where it ran
    domain: str


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """The result of stopping one process."""

    pid: int
    start_time: int
    domain: str | None  # None: it was not a client
    steps: tuple[str, ...]  # those done, of `freeze`, `drain`, `thaw`, `terminate`, `sigterm`, `sigkill`
    has_ended: bool
    why: str | None  # None, or why it has not ended


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a stop."""

    count: int  # processes that mpsd handled; 0: no process was found
    others: int  # clients in it that are other users', and were not touched
    processes: tuple[StoppedProcess, ...]  # at most 150, those that were left first


@dataclass(frozen=True, slots=True)
class Moved:
    """A client whose next start has another domain."""

    pid: int
    start_time: int
    domain: str
