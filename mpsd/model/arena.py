"""Arenas: named sets of GPU memory that outlive the process that filled them.

Frozen values, no I/O, no clock.  Times are seconds since the epoch, because they outlive mpsd.  Prose: docs/vault.md.
"""

from enum import StrEnum

from msgspec import Struct

from mpsd.model.process import ProcessId

GRANULE = 2 << 20  # bytes; cuMemCreate's granularity on every GPU with MPS: offsets and sizes are its multiples
FIRST_ADDRESS = 0x2000_0000_0000  # of all windows: Linux puts no host mapping there, and CUDA honours it (measured)
LAST_ADDRESS = 0x5000_0000_0000
WINDOW_UNIT = 1 << 30  # bytes; windows begin and end at its multiples
MOST_CAPACITY_BYTES = 1 << 42
MOST_WINDOW_BYTES = 1 << 43
MOST_LAYOUT_BYTES = 16 << 20
MOST_DESCRIPTORS = 128  # in one datagram, either way


class Access(StrEnum):
    """How a process opens an arena."""

    WRITE = "write"  # by one process at a time
    READ = "read"


class Allocation(Struct, frozen=True):
    """`bytes` of GPU memory at `offset` of the window; the keeper holds it under a name made of `serial`.

    is_committed: part of the last committed layout.  is_dropped: the next commit removes it.  Both: an adopter still gets it.
    since: the commit that introduces it; it differs for all allocations ever committed at one offset.
    """

    offset: int
    bytes: int
    serial: int
    is_committed: bool = False
    is_dropped: bool = False
    since: int = 0


class KeptState(Struct, frozen=True):
    """A forward state that is kept with an arena: a file of `bytes` in host memory, from the writer of `generation`.

    The keeper holds it under a name made of `serial`, which is never reused.
    """

    serial: int
    generation: int
    bytes: int


class Arena(Struct, frozen=True):
    """The facts about one arena, not its contents.

    gpu: UUID.  base, window_bytes: the address range at which every process maps it.  capacity_bytes: the limit on its memory.
    used_bytes: the memory held, committed or not.  allocations, layout_hash, layout_bytes: of the last commit; the hash is
    empty before the first.  commit: its number, which only grows.  generation: counts writers; an older one is refused.
    writer: the process that may change it, also while it is being fenced.  unheld_since: None while a process has it open.
    state_serial: of the forward state that is kept with it; 0: none.  state_generation: of the writer that gave it.
    pid_namespace: of the process that made it, by its number; None: mpsd's own, or an operator made it; 0: not known.
    is_of_owner: it counts as its owner's, and not as the namespace's: its maker's user namespace has a user's uids alone.
    """

    id: int
    name: str
    owner_uid: int
    owner_gid: int
    mode: int  # as of a file: read permits adopting, write permits writing; x has no meaning
    gpu: str
    base: int
    window_bytes: int
    capacity_bytes: int
    created_at: float
    used_bytes: int = 0
    allocations: int = 0
    layout_hash: str = ""  # SHA-256 in hex of the layout's bytes
    layout_bytes: int = 0
    commit: int = 0
    generation: int = 0
    is_sealed: bool = False
    writer: ProcessId | None = None
    readers: tuple[ProcessId, ...] = ()
    lease_id: int | None = None  # of its creator; the arena's memory counts against that lease
    ttl_seconds: float | None = None  # how long it stays without a holder; None: until it is removed
    unheld_since: float | None = None
    state_serial: int = 0
    state_generation: int = 0
    pid_namespace: int | None = None
    is_of_owner: bool = False

    @property
    def is_held(self) -> bool:
        return self.writer is not None or bool(self.readers)


class Portion(Struct, frozen=True):
    """A portion of the last commit, in the order of the offsets, and the arena at that time.

    fds: of the layout, if has_layout, and of each allocation newer than the commit that the caller knew; the receiver closes
    them.  has_more: the commit has further allocations after these.
    """

    arena: Arena
    allocations: tuple[Allocation, ...]
    fds: tuple[int, ...]
    has_layout: bool
    has_more: bool


class ArenaSpec(Struct, frozen=True):
    """The request for an arena.  window_bytes: None: twice the capacity, which leaves gaps between allocations."""

    name: str
    gpu: str
    capacity_bytes: int
    window_bytes: int | None = None
    mode: int = 0o600
    ttl_seconds: float | None = None


class KeeperView(Struct, frozen=True):
    """The processes that hold the arenas' memory.  state: "works", or why not all do.  held: the number of descriptors."""

    state: str
    pids: tuple[int, ...] = ()
    held: int = 0

    @property
    def works(self) -> bool:
        """Whether all answer.  An empty vault needs none."""
        return self.state == "works" or not (self.held or self.pids)
