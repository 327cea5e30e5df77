"""The parameters of the methods of arenas; messages.py has all others.

Offsets and sizes of allocations are multiples of the driver's granule; the vault checks that they lie in the window.
"""


from typing import Annotated

from msgspec import Struct

from mpsd.model.arena import GRANULE, MOST_CAPACITY_BYTES, MOST_DESCRIPTORS, MOST_WINDOW_BYTES, Access
from mpsd.wire.messages import GPU, ID, MOST_SECONDS, PATIENCE
from mpsd.wire.params import array, boolean, choice, maybe, multiple, number, owned_word, pair, whole

MOST_DROPPED = 1024  # at once

_NAME = owned_word(128)
_GENERATION = whole(0, 2**63 - 1)
_COMMIT = whole(0, 2**63 - 1)
_CAPACITY = whole(GRANULE, MOST_CAPACITY_BYTES)
_WINDOW = whole(GRANULE, MOST_WINDOW_BYTES)
_MODE = whole(0, 0o777)
_OFFSET = multiple(GRANULE, 0, MOST_WINDOW_BYTES - GRANULE)
_ALLOCATION = pair(("offset", _OFFSET), ("bytes", multiple(GRANULE, GRANULE, MOST_WINDOW_BYTES)))


class CreateArena(Struct, frozen=True):
    name: Annotated[str, _NAME]
    gpu: Annotated[str, GPU]
    capacity_bytes: Annotated[int, _CAPACITY]
    window_bytes: Annotated[int | None, maybe(_WINDOW)] = None
    mode: Annotated[int, _MODE] = 0o600
    ttl_seconds: Annotated[float | None, maybe(number(0, MOST_SECONDS, may_be_least=False))] = None


class ArenaName(Struct, frozen=True):
    name: Annotated[str, _NAME]


class OpenArena(Struct, frozen=True):
    name: Annotated[str, _NAME]
    access: Annotated[Access, choice(Access)]
    wait_seconds: Annotated[float, PATIENCE] = 0.0
    takes: Annotated[int, whole(0, MOST_DESCRIPTORS - 1)] = 0  # the layout comes with them
    known: Annotated[int, _COMMIT] = 0


class PutMemory(Struct, frozen=True):
    """Needs a descriptor for each allocation, in their order."""

    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]
    allocations: Annotated[tuple[tuple[int, int], ...], array(_ALLOCATION, MOST_DESCRIPTORS, 1)]


class DropMemory(Struct, frozen=True):
    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]
    offsets: Annotated[tuple[int, ...], array(_OFFSET, MOST_DROPPED, 1)]


class CommitArena(Struct, frozen=True):
    """With descriptors of the layout and of a forward state, in this order, as far as the flags announce them."""

    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]
    has_layout: Annotated[bool, boolean()]
    has_state: Annotated[bool, boolean()] = False


class TakeMemory(Struct, frozen=True):
    """The allocations after the offset `after`; without descriptors for those that the commit `known` had too."""

    id: Annotated[int, ID]
    after: Annotated[int | None, maybe(whole(0, MOST_WINDOW_BYTES))] = None
    limit: Annotated[int, whole(1, MOST_DESCRIPTORS)] = MOST_DESCRIPTORS
    known: Annotated[int, _COMMIT] = 0


class ArenaId(Struct, frozen=True):
    id: Annotated[int, ID]


class CloseArena(Struct, frozen=True):
    """openings: close only if the process has opened the arena as many times."""

    id: Annotated[int, ID]
    openings: Annotated[int | None, maybe(whole(1, 2**63 - 1))] = None


class SealArena(Struct, frozen=True):
    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]


class ChangeArena(Struct, frozen=True):
    """nil keeps a value; a time to live of 0 removes it."""

    id: Annotated[int, ID]
    capacity_bytes: Annotated[int | None, maybe(_CAPACITY)] = None
    mode: Annotated[int | None, maybe(_MODE)] = None
    ttl_seconds: Annotated[float | None, maybe(number(0, MOST_SECONDS))] = None


class MakeRoom(Struct, frozen=True):
    gpu: Annotated[str, GPU]
    bytes: Annotated[int, whole(1, MOST_WINDOW_BYTES)]
