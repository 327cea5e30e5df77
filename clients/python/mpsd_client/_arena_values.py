"""The results about arenas.  `make docs` makes this module."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arena:
    """A named set of GPU memory."""

    id: int  # never used twice
    name: str
    owner_uid: int  # the user who made it
    owner_gid: int  # their group when they did
    mode: int  # permissions, as of a file
    gpu: str
    base: int  # the first address of its window: map everything there, in every process
    window_bytes: int
    capacity_bytes: int
    used_bytes: int  # held now, committed or not
    allocations: int  # committed ones
    layout_hash: str  # SHA-256 in hexadecimal of the committed layout; empty before the first
    layout_bytes: int
    commit: int  # of the last commit: it only grows; 0: no commit yet
    state_serial: int  # of the forward state that is kept with it; 0: none
    generation: int  # counts writers
    is_sealed: bool  # it cannot be changed any more
    writer_pid: int | None  # also while it has ended and is not fenced yet
    writer_start_time: int | None  # of that process, field 22 of /proc/PID/stat: a later one with its pid differs
    reader_pids: tuple[int, ...]  # the first 1,024
    lease_id: int | None  # that its memory counts against
    ttl_seconds: float | None
    created_at: float
    unheld_since: float | None  # None: a process holds it


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """The memory of an arena."""

    used_bytes: int  # held by the arena now


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed contents of an arena, which the next writer would adopt."""

    layout_hash: str  # of the layout that holds now
    allocations: int  # committed ones
    used_bytes: int  # held by the arena now
    commit: int  # of this one
    state_serial: int  # of the forward state that is kept now; 0: none is


@dataclass(frozen=True, slots=True)
class Taken:
    """A page of allocations."""

    commit: int  # that this is of
    items: tuple[tuple[int, ...], ...]  # the third is the commit that each came with
    next: int | None  # the last offset; None: this was the last
    fds: tuple[int, ...]  # of the allocations that came with one; the caller closes them


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The layout of an arena."""

    layout_hash: str  # SHA-256 in hexadecimal
    layout_bytes: int
    fd: int | None  # read it from offset 0, and close it; None: the arena has no layout


@dataclass(frozen=True, slots=True)
class StateKept:
    """A forward state that mpsd keeps now."""

    state_serial: int  # larger than that of any state before


@dataclass(frozen=True, slots=True)
class KeptState:
    """The forward state that mpsd keeps."""

    state_serial: int  # 0: none is kept
    generation: int  # of the writer that made it, which may be one before; 0: none is kept
    fd: int | None  # a memory file, which the caller closes; None: mpsd keeps no state


@dataclass(frozen=True, slots=True)
class RoomMade:
    """The result of an eviction."""

    freed_bytes: int
    names: tuple[str, ...]  # of the arenas that went, as far as you could see them
    why: str  # why less was freed than asked; empty if enough was
