"""Arenas: named sets of GPU memory that outlive the process that filled them.

Frozen values, no I/O, no clock.  Times are seconds since the epoch, because they outlive mpsd.  Prose: docs/vault.md.
"""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.model import ProcessId

GRANULE = 2 << 20  # bytes; cuMemCreate's granularity on every GPU with MPS: offsets and sizes are multiples of it
FIRST_ADDRESS = 0x2000_0000_0000  # of all windows: no host mapping is put there by Linux, and CUDA honours it (measured)
LAST_ADDRESS = 0x5000_0000_0000
WINDOW_UNIT = 1 << 30  # bytes; windows begin and end at multiples of it
MOST_CAPACITY_BYTES = 1 << 42
MOST_WINDOW_BYTES = 1 << 43
MOST_LAYOUT_BYTES = 16 << 20
MOST_DESCRIPTORS = 128  # in one datagram, either way


class Access(StrEnum):
    """How an arena is opened."""

    WRITE = "write"  # by one process at a time
    READ = "read"


@dataclass(frozen=True, slots=True)
class Allocation:
    """`bytes` of GPU memory at `offset` of the window; the keeper holds it under a name made of `serial`.

    is_committed: part of the last committed layout.  is_dropped: it goes at the next commit.  Both: an adopter still gets it.
    since: the commit that it comes with; of those that were committed at one offset, no two have the same.
    """

    offset: int
    bytes: int
    serial: int
    is_committed: bool = False
    is_dropped: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True)
class KeptState:
    """A forward state that is kept with an arena: a file of `bytes`, in the host's memory, which the writer of `generation`
    gave; the keeper holds it under a name made of `serial`, which is never given twice."""

    serial: int
    generation: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Arena:
    """What is known of one arena; what is in it is nobody's business here.

    gpu: UUID.  base, window_bytes: the addresses that all its processes see it at, the same in each.  capacity_bytes: how much
    it may hold.  used_bytes: held, committed or not.  allocations, layout_hash, layout_bytes: of the last commit; the hash is
    empty before the first.  commit: its number, which only grows.  generation: counts writers: what carries an older one is
    refused.  writer: the process that may change it, also while it is being fenced.  unheld_since: None while somebody has it
    open.  state_serial: of the forward state that is kept with it; 0: none.  state_generation: in which it was given.
    """

    id: int
    name: str
    owner_uid: int
    owner_gid: int
    mode: int  # as of a file: read is adopting, write is writing; x has no meaning
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
    lease_id: int | None = None  # of its creator; its memory counts against that lease
    ttl_seconds: float | None = None  # how long it stays with nobody holding it; None: until it is removed
    unheld_since: float | None = None
    state_serial: int = 0
    state_generation: int = 0

    @property
    def is_held(self) -> bool:
        return self.writer is not None or bool(self.readers)


@dataclass(frozen=True, slots=True)
class Portion:
    """Some of what was committed last, in the order of the offsets, and of which arena it is, as it was then.

    fds: of the layout, where has_layout, and of each allocation that came after the commit that was known; they are closed by
    whoever gets this.  has_more: behind the last of them.
    """

    arena: Arena
    allocations: tuple[Allocation, ...]
    fds: tuple[int, ...]
    has_layout: bool
    has_more: bool


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """What was asked for.  window_bytes: None: twice the capacity, so that there is room between allocations."""

    name: str
    gpu: str
    capacity_bytes: int
    window_bytes: int | None = None
    mode: int = 0o600
    ttl_seconds: float | None = None
