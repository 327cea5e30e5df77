"""The values in mpsd's answers about arenas."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arena:
    """A named set of GPU memory.  base: its first address, the same in every process.  mode: permissions, as of a file.

    generation: the number of writers so far.  writer_pid: stays set after the writer's end while its work may still write.
    unheld_since: None while a process has the arena open.
    """

    id: int
    name: str
    owner_uid: int
    owner_gid: int
    mode: int
    gpu: str
    base: int
    window_bytes: int
    capacity_bytes: int
    used_bytes: int
    allocations: int
    layout_hash: str
    layout_bytes: int
    generation: int
    is_sealed: bool
    writer_pid: int | None
    reader_pids: tuple[int, ...]
    lease_id: int | None
    ttl_seconds: float | None
    created_at: float
    unheld_since: float | None
    commit: int = 0  # number of the last commit; it only grows


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """The bytes that an arena uses now."""

    used_bytes: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed contents of an arena, which the next writer would adopt."""

    layout_hash: str
    allocations: int
    used_bytes: int
    commit: int = 0
    state_serial: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """A page of allocations: offset, size and commit number of each in items, and their descriptors in fds, which the caller
    closes.  next: where the next page begins; None at the end."""

    items: tuple[tuple[int, ...], ...]
    next: int | None
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The layout of an arena.  fd: read it from offset 0; the caller closes it; None if the arena has no layout."""

    layout_hash: str
    layout_bytes: int
    fd: int | None = None


@dataclass(frozen=True, slots=True)
class RoomMade:
    """The result of an eviction.  names: the evicted arenas, as far as the caller may see them."""

    freed_bytes: int
    names: tuple[str, ...]
