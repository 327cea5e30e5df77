"""What the methods act on: the views of the running daemon that this socket needs.

Only types live here.  The daemon implements them (LeaseBook, the pool, the board); tests implement them in memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mpsd.api.service_port import ServicePort
from mpsd.model.arena import Access, Allocation, Arena, ArenaSpec, KeeperView, KeptState, Portion
from mpsd.model.blame import BlameStatus
from mpsd.model.client import ClientView
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, DomainView, ServerView
from mpsd.model.fault import FirstError, Incident
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec
from mpsd.model.process import ProcessId
from mpsd.model.stop import StopPort


class Queued(Protocol):
    """A lease or a client (then `process`) that waits for admission or for room."""

    @property
    def position(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def lease_id(self) -> int | None: ...
    @property
    def process(self) -> ProcessId | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def waited_seconds(self) -> float: ...
    @property
    def deadline(self) -> float | None: ...


class LeasePort(Protocol):
    """The LeaseBook.  A change survives mpsd when the call returns, and a power cut after `settled`.

    Every method may raise MpsdError.
    """

    async def meet(self, uid: int) -> None:
        """Find out which quotas apply to this user, before `create`."""

    def create(self, owner_uid: int, spec: LeaseSpec, for_all_users: bool) -> Lease: ...
    def renew(self, lease_id: int, ttl_seconds: float | None) -> Lease: ...
    def release(self, lease_id: int) -> Lease: ...
    async def settled(self) -> None: ...
    def leases(self) -> Sequence[Lease]: ...
    def find(self, lease_id: int) -> Lease: ...
    def grants(self) -> Mapping[ProcessId, Grant]: ...
    def grant_of(self, process: ProcessId) -> Grant | None: ...
    def queue(self) -> Sequence[Queued]: ...
    def identity_of(self, process: ProcessId) -> Identity | None: ...
    def uid_of(self, process: ProcessId) -> int | None:
        """The uid of its identity, without a look at the process."""


class AwaitsDomain(Protocol):
    """A client that was admitted and waits for a fault domain."""

    @property
    def process(self) -> ProcessId: ...
    @property
    def uid(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def waited_seconds(self) -> float: ...


class DomainPort(Protocol):
    """The fault domains.  Methods that only read answer from mpsd's own state, without asking a vendor daemon."""

    def views(self) -> Sequence[DomainView]: ...
    def servers(self, domain: str) -> Sequence[ServerView]:
        """Return the servers of a domain, as far as they are known."""

    def clients(self, pid: int | None = None) -> Sequence[ClientView]:
        """All, or those with this pid."""

    def waiting(self) -> Sequence["AwaitsDomain"]:
        """Return the clients that were admitted and wait for a domain, by their time of arrival."""

    async def create(self, gpus: tuple[str, ...]) -> str:
        """Start a domain of these GPUs and return its name.  Raises TooMany."""

    async def drain(self, name: str) -> None:
        """Stop admitting clients to the domain; remove it when its last client has ended."""

    async def recycle(self, name: str) -> None:
        """Replace the servers by new ones; called only while the domain has no clients."""

    async def move(self, process: ProcessId, domain: str) -> None:
        """Set the domain of this client's next start.  The running process is not affected."""


class BoardPort(Protocol):
    """The board, which the command language acts on too (commands/language/board.py)."""

    @property
    def devices(self) -> Sequence[Device]: ...
    def defaults(self) -> Defaults: ...
    async def set_defaults(self, defaults: Defaults) -> None: ...
    async def servers(self) -> Sequence[ServerView]: ...
    async def terminate_client(self, server_pid: int, client_pid: int) -> str: ...


class FaultPort(Protocol):
    """The incidents, and the measures against clients that cause them (faults/incidents.py)."""

    def incidents(self, after: int) -> Iterable[Incident]:
        """Return the incidents with a larger number, in ascending order.

        Reads from the database only as many as the caller takes.
        """

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        """Return the incidents with a smaller number (None: all), the newest first; likewise read as they are taken."""

    def incident(self, number: int) -> Incident:
        """Return one incident.  Raises NoSuchFault."""

    def report(self, process: ProcessId, error: FirstError) -> None:
        """Record a client's report of its own error.  The caller has checked the process and the number of its reports."""

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """Watch the process's guards in this range.  Returns whether accesses to them will be seen.  Raises TooMany."""

    def standings(self) -> Iterable[BlameStatus]: ...

    def pardon(self, key: str) -> BlameStatus:
        """End what is held against the key and return it.  Durable when the call returns.  Raises NoSuchFault."""


class ArenaPort(Protocol):
    """The vault (vault/arenas.py).  Changes are durable when the call returns; every method may raise MpsdError.

    `process` is the caller.  dispatch.py has checked the privilege; these methods check that the caller is the writer, and of
    this generation: StaleGeneration, ArenaBusy.  The callee owns the descriptors that it takes, even if it raises; the caller
    owns those that it gets.
    """

    def arenas(self) -> Sequence[Arena]:
        """Return all arenas, by id."""

    def find(self, name: str) -> Arena:
        """Return the arena with this name.  Raises NoSuchArena."""

    def find_id(self, arena_id: int) -> Arena:
        """Return the arena with this id.  Raises NoSuchArena."""

    async def create(
        self, spec: ArenaSpec, uid: int, gid: int, process: ProcessId | None, pid_namespace: int | None = None
    ) -> Arena:
        """Create an arena.  process: its lease is charged.  Raises NoRoom, NoSuchDevice, BadRequest (the name is taken)."""

    async def open(self, arena_id: int, access: Access, process: ProcessId, wait_seconds: float) -> Arena:
        """Open the arena.  The writer may open it again.  If another process writes, wait until that one is fenced.

        Raises ArenaBusy, ArenaSealed.
        """

    async def put(
        self, arena_id: int, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> Arena:
        """Add memory.  An uncommitted allocation of the same offset and size is replaced.

        Raises NoRoom, BadRequest.
        """

    async def drop(self, arena_id: int, generation: int, process: ProcessId, offsets: Sequence[int]) -> Arena:
        """Drop allocations: uncommitted ones at once, the others with the next commit."""

    async def commit(
        self, arena_id: int, generation: int, process: ProcessId, layout: int | None, state: int | None = None
    ) -> Arena:
        """Commit pending puts and drops, the layout and the forward state atomically.

        layout: a descriptor to read; None: unchanged.  state: likewise; None: unchanged; of this generation or an earlier one.
        """

    def openings(self, arena_id: int, process: ProcessId) -> int:
        """Return how often the process has opened the arena while holding it, as far as this mpsd knows.

        1: it is the first time.
        """

    async def take(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        limit: int,
        known: int = 0,
        *,
        with_layout: bool = False,
    ) -> Portion:
        """Return committed allocations beyond the offset `after`, by offset, with a descriptor of each.

        Raises NotAllowed unless the process holds the arena.
        """

    async def layout(self, arena_id: int, process: ProcessId) -> tuple[Arena, int]:
        """Return a sealed memory file; -1 before the first layout.  Raises NotAllowed unless the process holds the arena."""

    async def keep_state(self, arena_id: int, generation: int, process: ProcessId, state: int) -> Arena:
        """Replace the forward state by this one (a descriptor), of this generation.  Raises BadRequest, NoRoom."""

    async def state(self, arena_id: int, process: ProcessId) -> tuple[KeptState, int] | None:
        """Return the forward state with a descriptor; None if none is kept.

        Raises NotAllowed unless the process holds the arena.
        """

    async def close(self, arena_id: int, process: ProcessId, openings: int | None = None) -> Arena:
        """Release the arena.  Memory that its writer did not commit is dropped.

        openings: do nothing unless the process has opened the arena that many times.
        """

    async def seal(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        """Make the arena unchangeable; its writer becomes a reader."""

    async def change(self, arena_id: int, capacity_bytes: int | None, mode: int | None, ttl_seconds: float | None) -> Arena:
        """Change the values that are not None.  Raises NoRoom."""

    async def remove(self, arena_id: int) -> Arena:
        """Remove the arena.  Raises ArenaBusy while a process holds it."""

    async def make_room(self, gpu: str, wanted_bytes: int, uid: int) -> list[Arena]:
        """Evict arenas, as the policy allows for this user, and return them; arenas that a process holds are never evicted."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that a method may reach.

    find_process: None if no process has the pid.  owner_of: the uid of a process; None if it has ended.
    namespaces_of: its pid namespaces, as processes.pid_namespaces() gives them.
    problems: why a client that starts now might not be served, in words; from mpsd's own state, without a wait.
    facts: further facts for `status`, such as the backend and the mode.
    started_at: seconds since the epoch.  fault_sources: each, and "works" or why it does not.  arenas, failover, keeper: None
    in a daemon that keeps no memory.  ends_at: while mpsd is stopping, the time at which it ends clients' remaining work.
    """

    leases: LeasePort
    domains: DomainPort
    board: BoardPort
    stopper: StopPort
    faults: FaultPort
    find_process: Callable[[int], ProcessId | None]
    owner_of: Callable[[ProcessId], int | None]
    namespaces_of: Callable[[int], tuple[int, ...]]
    is_stopping: Callable[[], bool]
    problems: Callable[[], Sequence[str]]
    started_at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    fault_sources: Callable[[], Mapping[str, str]] = dict
    arenas: ArenaPort | None = None
    keeper: Callable[[], KeeperView | None] = lambda: None
    failover: ServicePort | None = None
    ends_at: Callable[[], float | None] = lambda: None
