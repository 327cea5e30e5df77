"""What mpsd answers about arenas."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arena:
    """A named set of GPU memory.  base: the first of its addresses, the same in every process.  mode: as of a file.

    generation: counts writers.  writer_pid: also while it has ended and may still write.  unheld_since: None: it is held.
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
    commit: int = 0  # of the last commit; it only grows


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """How much it holds now."""

    used_bytes: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What the next writer would find."""

    layout_hash: str
    allocations: int
    used_bytes: int
    commit: int = 0
    state_serial: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Offset and size of each allocation, the commit that it came with, and its descriptor, which whoever asked closes.  next:
    None: there are no more."""

    items: tuple[tuple[int, ...], ...]
    next: int | None
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """fd: to read from offset 0, and to be closed by whoever asked; None where there is no layout."""

    layout_hash: str
    layout_bytes: int
    fd: int | None = None


@dataclass(frozen=True, slots=True)
class RoomMade:
    """names: of arenas that went, as far as we could see them."""

    freed_bytes: int
    names: tuple[str, ...]
