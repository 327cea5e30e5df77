"""The parameters of the methods of arenas; messages.py has all others.

Offsets and sizes of allocations are multiples of the driver's granule; the vault checks that they lie in the window.
"""

from dataclasses import dataclass

from mpsd.model.arena import GRANULE, MOST_CAPACITY_BYTES, MOST_DESCRIPTORS, MOST_WINDOW_BYTES, Access
from mpsd.wire.messages import GPU, ID, MOST_SECONDS, PATIENCE
from mpsd.wire.params import array, boolean, choice, maybe, multiple, number, owned_word, pair, param, whole

MOST_DROPPED = 1024  # at once

_NAME = owned_word(128)
_GENERATION = whole(0, 2**63 - 1)
_COMMIT = whole(0, 2**63 - 1)
_CAPACITY = whole(GRANULE, MOST_CAPACITY_BYTES)
_WINDOW = whole(GRANULE, MOST_WINDOW_BYTES)
_MODE = whole(0, 0o777)
_OFFSET = multiple(GRANULE, 0, MOST_WINDOW_BYTES - GRANULE)
_ALLOCATION = pair(("offset", _OFFSET), ("bytes", multiple(GRANULE, GRANULE, MOST_WINDOW_BYTES)))


@dataclass(frozen=True, slots=True)
class CreateArena:
    name: str = param(_NAME)
    gpu: str = param(GPU)
    capacity_bytes: int = param(_CAPACITY)
    window_bytes: int | None = param(maybe(_WINDOW), None)
    mode: int = param(_MODE, 0o600)
    ttl_seconds: float | None = param(maybe(number(0, MOST_SECONDS, may_be_least=False)), None)


@dataclass(frozen=True, slots=True)
class ArenaName:
    name: str = param(_NAME)


@dataclass(frozen=True, slots=True)
class OpenArena:
    name: str = param(_NAME)
    access: Access = param(choice(Access))
    wait_seconds: float = param(PATIENCE, 0.0)
    takes: int = param(whole(0, MOST_DESCRIPTORS - 1), 0)  # the layout comes with them
    known: int = param(_COMMIT, 0)


@dataclass(frozen=True, slots=True)
class PutMemory:
    """Needs a descriptor for each allocation, in their order."""

    id: int = param(ID)
    generation: int = param(_GENERATION)
    allocations: tuple[tuple[int, int], ...] = param(array(_ALLOCATION, MOST_DESCRIPTORS, 1))


@dataclass(frozen=True, slots=True)
class DropMemory:
    id: int = param(ID)
    generation: int = param(_GENERATION)
    offsets: tuple[int, ...] = param(array(_OFFSET, MOST_DROPPED, 1))


@dataclass(frozen=True, slots=True)
class CommitArena:
    """With descriptors of the layout and of a forward state, in this order, as far as the flags announce them."""

    id: int = param(ID)
    generation: int = param(_GENERATION)
    has_layout: bool = param(boolean())
    has_state: bool = param(boolean(), False)


@dataclass(frozen=True, slots=True)
class TakeMemory:
    """The allocations after the offset `after`; without descriptors for those that the commit `known` had too."""

    id: int = param(ID)
    after: int | None = param(maybe(whole(0, MOST_WINDOW_BYTES)), None)
    limit: int = param(whole(1, MOST_DESCRIPTORS), MOST_DESCRIPTORS)
    known: int = param(_COMMIT, 0)


@dataclass(frozen=True, slots=True)
class ArenaId:
    id: int = param(ID)


@dataclass(frozen=True, slots=True)
class CloseArena:
    """openings: close only if the process has opened the arena as many times."""

    id: int = param(ID)
    openings: int | None = param(maybe(whole(1, 2**63 - 1)), None)


@dataclass(frozen=True, slots=True)
class SealArena:
    id: int = param(ID)
    generation: int = param(_GENERATION)


@dataclass(frozen=True, slots=True)
class ChangeArena:
    """nil keeps a value; a time to live of 0 removes it."""

    id: int = param(ID)
    capacity_bytes: int | None = param(maybe(_CAPACITY), None)
    mode: int | None = param(maybe(_MODE), None)
    ttl_seconds: float | None = param(maybe(number(0, MOST_SECONDS)), None)


@dataclass(frozen=True, slots=True)
class MakeRoom:
    gpu: str = param(GPU)
    bytes: int = param(whole(1, MOST_WINDOW_BYTES))
