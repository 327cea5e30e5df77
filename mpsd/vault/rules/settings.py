"""The settings of the vault: how much arenas may hold, by user, and which arenas to evict when room is short."""

from enum import StrEnum

from msgspec import Struct, field


class Eviction(StrEnum):
    OFF = "off"
    EXPIRED = "expired"  # those past their time to live
    UNHELD = "unheld"  # those that no process has open, the longest unheld first


class VaultSettings(Struct, frozen=True):
    """The bounds of arenas, and which of them may be evicted.  None: no limit.

    memory_bytes, memory_share: what all arenas of a GPU may hold together, in bytes or as a part of its memory.  user_...: of
    one user, on each GPU; they do not bind operators.  layout_bytes: of all layouts, in the host's memory.  evicts_all: evict
    arenas of all users, not only the asking user's.  is_prompt: release what mpsd holds of a dead writer as soon as a process
    waits for its arena.
    """

    memory_bytes: int | None = None
    memory_share: float | None = None
    user_memory_bytes: int | None = None
    max_arenas: int = 1024
    user_arenas: int = 256
    max_allocations: int = 131072
    user_allocations: int = 65536
    layout_bytes: int = 1 << 30
    eviction: Eviction = Eviction.OFF
    evicts_all: bool = False
    is_prompt: bool = False
    is_kept: bool = False
    operators: frozenset[int] = field(default_factory=frozenset)
