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
    name: Annotated[str, _NAME, "never two at once; programs know it by this"]
    gpu: Annotated[str, GPU, "ordinal or UUID"]
    capacity_bytes: Annotated[int, _CAPACITY, "how much it may hold, rounded up to 2 MiB; no more than its GPU has"]
    window_bytes: Annotated[
        int | None, maybe(_WINDOW),
        "how many addresses, rounded up to 1 GiB, and no fewer than the capacity; nil: twice the capacity, to leave room "
        "between allocations",
    ] = None
    mode: Annotated[
        int, _MODE,
        "as of a file, 0o600: read is adopting, write (with read) is writing; for your user, your group, others",
    ] = 0o600
    ttl_seconds: Annotated[
        float | None, maybe(number(0, MOST_SECONDS, may_be_least=False)),
        "how long it stays while no process holds it; nil: until it is removed",
    ] = None


class ArenaName(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the arena"]


class OpenArena(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the arena"]
    access: Annotated[Access, choice(Access), "by one process at a time, or by any number"]
    wait_seconds: Annotated[
        float, PATIENCE,
        "how long you wait while another writes, or has written and is not fenced yet",
    ] = 0.0
    takes: Annotated[
        int, whole(0, MOST_DESCRIPTORS - 1),  # the layout comes with them
        "most allocations that come with the answer",
    ] = 0
    known: Annotated[int, _COMMIT, "as `arena.take` has it"] = 0


class PutMemory(Struct, frozen=True):
    """Needs a descriptor for each allocation, in their order."""

    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "yours, from `arena.open`"]
    allocations: Annotated[
        tuple[tuple[int, int], ...], array(_ALLOCATION, MOST_DESCRIPTORS, 1),
        "where each lies in the window, and how large it is",
    ]


class DropMemory(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "yours"]
    offsets: Annotated[tuple[int, ...], array(_OFFSET, MOST_DROPPED, 1), "of allocations"]


class CommitArena(Struct, frozen=True):
    """With descriptors of the layout and of a forward state, in this order, as far as the flags announce them."""

    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "yours"]
    has_layout: Annotated[bool, boolean(), "a descriptor comes with it; false: the layout stays as it was"]
    has_state: Annotated[
        bool, boolean(),
        "a descriptor of a forward state comes with it; false: that which is kept stays",
    ] = False


class TakeMemory(Struct, frozen=True):
    """The allocations after the offset `after`; without descriptors for those that the commit `known` had too."""

    id: Annotated[int, ID, "of the arena"]
    after: Annotated[
        int | None, maybe(whole(0, MOST_WINDOW_BYTES)),
        "the `next` of the answer before; nil: from the beginning",
    ] = None
    limit: Annotated[int, whole(1, MOST_DESCRIPTORS), "most allocations of this answer"] = MOST_DESCRIPTORS
    known: Annotated[int, _COMMIT, "the commit that you have mapped; 0: none"] = 0


class ArenaId(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]


class CloseArena(Struct, frozen=True):
    """openings: close only if the process has opened the arena as many times."""

    id: Annotated[int, ID, "of the arena"]
    openings: Annotated[
        int | None, maybe(whole(1, 2**63 - 1)),
        "nothing is done unless you have opened it so often: for who opened it, could not map it, and is not to take it "
        "from another part of the process",
    ] = None


class SealArena(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "yours"]


class ChangeArena(Struct, frozen=True):
    """nil keeps a value; a time to live of 0 removes it."""

    id: Annotated[int, ID, "of the arena"]
    capacity_bytes: Annotated[
        int | None, maybe(_CAPACITY),
        "rounded up to 2 MiB; not less than it holds, and no more than its GPU has",
    ] = None
    mode: Annotated[int | None, maybe(_MODE), "processes that have it open keep it"] = None
    ttl_seconds: Annotated[float | None, maybe(number(0, MOST_SECONDS)), "0: until it is removed"] = None


class MakeRoom(Struct, frozen=True):
    gpu: Annotated[str, GPU, "ordinal or UUID"]
    bytes: Annotated[int, whole(1, MOST_WINDOW_BYTES), "how much is wanted"]
