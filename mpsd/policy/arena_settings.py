"""What the vault was told: how much, by whom, and what goes when room is short.  Values."""

from dataclasses import dataclass, field
from enum import StrEnum


class Eviction(StrEnum):
    OFF = "off"
    EXPIRED = "expired"  # those whose time is over
    UNHELD = "unheld"  # those that nobody has open, whose end was longest ago first


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """None: no limit.  memory_bytes, memory_share: what all arenas of a GPU may hold together, in bytes or as a part of its
    memory.  user_...: of one user, on each GPU; operators are not bound by them.  layout_bytes: of all layouts, in the
    host's memory.  evicts_all: not the asker's own arenas alone.  is_prompt: what mpsd holds of a dead writer is let go as
    soon as somebody waits for its arena."""

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
