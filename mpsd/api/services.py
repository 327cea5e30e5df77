"""What the methods act on: the views of the running daemon that this socket needs, and nothing more.

Only types live here.  The daemon implements them (LeaseBook, the pool, the board); tests implement them in memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from mpsd.api.failover import Failover
from mpsd.arena import Access, Allocation, Arena, ArenaSpec, KeptState, Portion
from mpsd.fault import Incident
from mpsd.lease import Grant, Identity, Lease, LeaseSpec
from mpsd.legacy.board import Defaults, ServerView
from mpsd.model import Device, DomainView, ProcessId
from mpsd.stop import Asker, Manner, Report, Target


class Queued(Protocol):
    """One that waits, for admission or for room: a lease, or a client (then `process`)."""

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


class Leases(Protocol):
    """The LeaseBook.  What changes outlives mpsd when the call returns, and a power cut after `settled`; every method may raise
    MpsdError."""

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


@dataclass(frozen=True, slots=True)
class ClientView:
    """A client as the domains know it.  server_pid: None while it is on its way.  uid: of the process, None if it has ended.

    watched: its memory faults are seen exactly, by whom and where.  shield: low addresses are shielded in it.  held: its end
    waits until its work on the GPU has been ended.  docs/faults.md says what each is worth.
    """

    process: ProcessId
    uid: int | None
    domain: str
    server_pid: int | None
    watched: bool = False
    shield: bool = False
    held: bool = False


class AwaitsDomain(Protocol):
    """A client that was let in and waits for a fault domain."""

    @property
    def process(self) -> ProcessId: ...
    @property
    def uid(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def waited_seconds(self) -> float: ...


class Domains(Protocol):
    """The fault domains.  What is only looked at is answered from own state, without asking a vendor daemon."""

    def views(self) -> Sequence[DomainView]: ...
    def servers(self, domain: str) -> Sequence[ServerView]:
        """As far as they are known."""

    def clients(self, pid: int | None = None) -> Sequence[ClientView]:
        """All, or those with this pid."""

    def waiting(self) -> Sequence["AwaitsDomain"]:
        """Clients that were let in and wait for a domain, by their time of arrival."""

    async def create(self, gpus: tuple[str, ...]) -> str:
        """Begin a domain of these GPUs; its name.  Raises TooMany."""

    async def drain(self, name: str) -> None:
        """From now on it takes nobody; it goes for good when its last client has."""

    async def recycle(self, name: str) -> None:
        """Replace its servers by fresh ones; only called while it has no clients."""

    async def move(self, process: ProcessId, domain: str) -> None:
        """Where this client is placed at its next start.  Nothing happens to the running process."""


class Board(Protocol):
    """What the command language acts on too (legacy/board.py)."""

    @property
    def devices(self) -> Sequence[Device]: ...
    def defaults(self) -> Defaults: ...
    async def set_defaults(self, defaults: Defaults) -> None: ...
    async def servers(self) -> Sequence[ServerView]: ...
    async def terminate_client(self, server_pid: int, client_pid: int) -> str: ...


class Stopper(Protocol):
    """Ends processes so that their co-runners go on (runtime/stopping.py)."""

    async def stop(self, target: Target, manner: Manner, asker: Asker) -> Report:
        """Raises NoSuchClient for a pid that is not there or is another's, BadRequest."""


@dataclass(frozen=True, slots=True)
class FirstError:
    """What a client says of its own first CUDA error.  Bounded, and otherwise believed by nobody without more.

    code, name: of CUresult.  kernel, pc, address, text: where it knows them.
    """

    code: int
    name: str = ""
    kernel: str = ""
    pc: int | None = None
    address: int | None = None
    text: str = ""


class StandingKind(StrEnum):
    """What is held against somebody."""

    CONVICTED = "convicted"  # found to have done it: in quarantine while it lasts
    SUSPECTED = "suspected"  # one of several who could have: placed apart by group testing
    PAUSED = "paused"  # faulted too often in a row: not admitted for a while
    DRAINED = "drained"  # a GPU that failed: nobody new is admitted to it


@dataclass(frozen=True, slots=True)
class Standing:
    """What is held against one key (mpsd/fault.py, Party.key; of a GPU that is drained, its UUID), and for how long.

    since_at, until_at: seconds since the epoch; until_at is None where no end is known.  faults: how many of its faults count.
    case: of a conviction, the number of its last fault; of group testing, that of the fault it began with.  group: suspects
    with the same number are placed together.
    """

    key: str
    kind: StandingKind
    since_at: float
    until_at: float | None = None
    faults: int = 0
    case: int | None = None
    group: int | None = None


class Faults(Protocol):
    """What is known of faults and of those who make them (faults/desk.py)."""

    def incidents(self, after: int) -> Iterable[Incident]:
        """Those with a larger number, in the order of their numbers.  No more of them are read than are taken."""

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        """Those with a smaller number (None: all), the newest first, likewise."""

    def incident(self, number: int) -> Incident:
        """Raises NoSuchFault."""

    def report(self, process: ProcessId, error: FirstError) -> None:
        """A client says so of itself.  Who it is, and how often, has been checked."""

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """It has guards there that tell of accesses; whether they will be seen.  Raises TooMany."""

    def standings(self) -> Iterable[Standing]: ...

    def pardon(self, key: str) -> Standing:
        """Nothing is held against it any more; what was.  Durable when the call returns.  Raises NoSuchFault."""


class Arenas(Protocol):
    """The vault (vault/arenas.py).  What changes is durable when the call returns; every method may raise MpsdError.

    A process is whoever asks.  Who may what was checked before (dispatch.py); that it is the writer, and of this generation, is
    checked here: StaleGeneration, ArenaBusy.  Descriptors that are taken belong to the callee from then on, also when it
    raises; those that are given belong to the caller.
    """

    def arenas(self) -> Sequence[Arena]:
        """By id."""

    def find(self, name: str) -> Arena:
        """Raises NoSuchArena."""

    def find_id(self, arena_id: int) -> Arena:
        """Raises NoSuchArena."""

    async def create(self, spec: ArenaSpec, uid: int, gid: int, process: ProcessId | None) -> Arena:
        """The process: whose lease it counts against.  Raises NoRoom, NoSuchDevice, BadRequest (the name is taken)."""

    async def open(self, arena_id: int, access: Access, process: ProcessId, wait_seconds: float) -> Arena:
        """The writer again is the writer still.  Another writes: wait until it is fenced.

        Raises ArenaBusy, ArenaSealed."""

    async def put(
        self, arena_id: int, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> Arena:
        """More memory.  The same place and size once more replaces it, while it is not committed.

        Raises NoRoom, BadRequest."""

    async def drop(self, arena_id: int, generation: int, process: ProcessId, offsets: Sequence[int]) -> Arena:
        """What is not committed goes at once, the rest with the next commit."""

    async def commit(
        self, arena_id: int, generation: int, process: ProcessId, layout: int | None, state: int | None = None
    ) -> Arena:
        """What was put is there, what was dropped is gone, and the layout (a descriptor to read; None: as it was) and the
        forward state (None: the one there is), of this generation or an earlier one, hold: all of it or nothing."""

    def openings(self, arena_id: int, process: ProcessId) -> int:
        """How often it has opened the arena since it holds it, as far as this mpsd knows: 1: it had it not before."""

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
        """Committed allocations beyond an offset, by offset, and a descriptor of each.

        Raises NotAllowed unless it holds it."""

    async def layout(self, arena_id: int, process: ProcessId) -> tuple[Arena, int]:
        """A sealed memory file; -1 before the first layout.  Raises NotAllowed unless it holds the arena."""

    async def keep_state(self, arena_id: int, generation: int, process: ProcessId, state: int) -> Arena:
        """The forward state of this generation (a descriptor), in the place of the one before.  Raises BadRequest, NoRoom."""

    async def state(self, arena_id: int, process: ProcessId) -> tuple[KeptState, int] | None:
        """With a descriptor.  None: none is kept.  Raises NotAllowed unless it holds the arena."""

    async def close(self, arena_id: int, process: ProcessId, openings: int | None = None) -> Arena:
        """It holds the arena no longer.  What its writer did not commit is dropped.  openings: nothing is done unless it has
        opened the arena so often."""

    async def seal(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        """Nobody writes it any more; the writer is a reader now."""

    async def change(self, arena_id: int, capacity_bytes: int | None, mode: int | None, ttl_seconds: float | None) -> Arena:
        """What is None stays.  Raises NoRoom."""

    async def remove(self, arena_id: int) -> Arena:
        """Raises ArenaBusy while somebody holds it."""

    async def make_room(self, gpu: str, wanted_bytes: int, uid: int) -> list[Arena]:
        """What was evicted, as the policy allows for this user; never what somebody holds."""


@dataclass(frozen=True, slots=True)
class KeeperView:
    """The processes that hold the arenas' memory.  state: "works", or why not all do.  held: how many descriptors."""

    state: str
    pids: tuple[int, ...] = ()
    held: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a method may reach.

    find_process: None where no process has the pid.  owner_of: the uid of a process; None where it has gone.
    namespaces_of: its pid namespaces, as processes.pid_namespaces() gives them.
    problems: why a client that starts now might not be served, in words; from what is known, without a wait.
    facts: what `status` says besides, as the backend and the mode.
    started_at: seconds since the epoch.  fault_sources: each, and "works" or why it does not.  arenas, failover: None in a
    daemon that keeps no memory.  keeper: None likewise.  ends_at: when the work of clients is ended, done or not, since mpsd is
    stopping.
    """

    leases: Leases
    domains: Domains
    board: Board
    stopper: Stopper
    faults: Faults
    find_process: Callable[[int], ProcessId | None]
    owner_of: Callable[[ProcessId], int | None]
    namespaces_of: Callable[[int], tuple[int, ...]]
    is_stopping: Callable[[], bool]
    problems: Callable[[], Sequence[str]]
    started_at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    fault_sources: Callable[[], Mapping[str, str]] = dict
    arenas: Arenas | None = None
    keeper: Callable[[], KeeperView | None] = lambda: None
    failover: Failover | None = None
    ends_at: Callable[[], float | None] = lambda: None
