"""The manifest of an image: its arenas, and where each of their blocks is stored.

    0    8  "mpsdimg" and a zero byte
    8    2  major version, u16 LE: another one is refused
    10   2  minor version, u16 LE: later ones add fields, which are ignored
    12   4  length of the body, u32 LE
    16  16  keyed hash of the bytes 0 to 15 and of the body
    32      the body: a MessagePack map, as of the structures below

Pure.  Prose: docs/images.md, "The manifest".
"""

import math
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.images.rules.block_hash import HASH_BYTES, BlockHash
from mpsd.images.rules.membership import Epoch, check_epoch
from mpsd.images.rules.naming import MOST_TEXT
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.model.arena import GRANULE, MOST_LAYOUT_BYTES, MOST_WINDOW_BYTES

BLOCK_BYTES = GRANULE  # of every block; an allocation of an arena is a whole number of them
MOST_MANIFEST_BYTES = 512 << 20
MOST_ARENAS = 1 << 16  # of an image; vault.max_arenas allows no more
MOST_ALLOCATIONS = 1 << 20  # of an arena; a vault holds fewer
MOST_STATE_BYTES = 4 << 20  # of a forward state's file
_MAGIC, MAJOR, MINOR = b"mpsdimg\0", 1, 0
_HEAD = struct.Struct("<8sHHI")
_LATEST = 253_402_300_799  # the last second of the year 9999
_PLACE = struct.Struct(f"<{HASH_BYTES}sII")
_PART_BLOCKS = 64  # that are compared at once
_SLOT = struct.Struct(f"<{HASH_BYTES}xII")  # the same without the hash
BODY_AT = _HEAD.size + HASH_BYTES


class BlockPlace(Struct, frozen=True, gc=False):
    """A stored block: its keyed hash, the number of its pack, and its slot there, in blocks."""

    id: bytes
    pack: int
    slot: int


class ArenaFacts(Struct, frozen=True):
    """What an arena was at the instant of the image, without its bytes; as in mpsd/model/arena.py.

    allocations: (offset, bytes) each, by offset.  layout: the bytes of the last commit's.  state: of the forward state's file,
    from the writer of state_generation; empty: there was none.
    """

    name: str
    gpu: str
    base: int
    window_bytes: int
    capacity_bytes: int
    allocations: Annotated[tuple[tuple[int, int], ...], Meta(max_length=MOST_ALLOCATIONS)]
    commit: int = 0
    generation: int = 0
    layout: bytes = b""
    state: bytes = b""
    state_generation: int = 0

    @property
    def content_bytes(self) -> int:
        return sum(size for _, size in self.allocations)


class ArenaImage(Struct, frozen=True):
    """An arena with its blocks: the places of all blocks, in the order of their offsets, 24 bytes each.

    origins: the hashes that they have in the directory where the image was received from, 16 bytes each; empty: it was not.
    """

    facts: ArenaFacts
    places: bytes
    origins: bytes = b""

    def place(self, number: int) -> BlockPlace:
        return BlockPlace(*_PLACE.unpack_from(self.places, number * _PLACE.size))

    def slots(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the packs of these blocks, and their slots there."""
        found = [_SLOT.unpack_from(self.places, number * _SLOT.size) for number in numbers]
        return [pack for pack, _ in found], [slot for _, slot in found]


class MemberImage(Struct, frozen=True):
    """An arena whose blocks are protected by parity instead of being stored; ids: the hashes of all, 16 bytes each."""

    facts: ArenaFacts
    ids: bytes

    def id(self, number: int) -> bytes:
        return self.ids[number * HASH_BYTES : (number + 1) * HASH_BYTES]


class Manifest(Struct, frozen=True):
    """A complete image.  Times are seconds since the epoch; instant: what the bytes are of.

    group: the arenas were taken at one instant, under this name; "": one arena alone.
    digest: keyed hash over the hashes of all blocks, in their order.
    epoch: of a group of processes; None: the image belongs to none.
    members: of which `arenas` is the parity; empty: the image has its arenas' own blocks.
    """

    name: str
    group: str
    instant: float
    written_at: float
    digest: bytes
    arenas: tuple[ArenaImage, ...]
    epoch: Epoch | None = None
    members: tuple[MemberImage, ...] = ()

    @property
    def series(self) -> str:
        """The name of the images that follow each other."""
        if self.epoch is not None:
            return f"{self.epoch.group}/{self.epoch.member}"
        if self.members:
            return f"{self.group}+parity"  # unlike the group's other images, which are to stay
        return self.group or self.arenas[0].facts.name

    @property
    def content_bytes(self) -> int:
        return sum(each.facts.content_bytes for each in self.arenas)

    def places(self) -> Iterator[BlockPlace]:
        """Yield the places of all blocks of all arenas."""
        for arena in self.arenas:
            yield from read_places(arena.places)


def later_than(image: Manifest, others: Sequence[Manifest]) -> Manifest:
    """Return the image with an instant after those of the others of its series; the last second of all has none after it."""
    last = max((each.instant for each in others if each.series == image.series and each.instant < _LATEST), default=0.0)
    return image if image.instant > last else replace(image, instant=math.nextafter(last, math.inf))


def check_has_blocks(image: Manifest) -> None:
    """Raise BadRequest if the image has the parity of arenas instead of their blocks."""
    if image.members:
        names = ", ".join(each.facts.name for each in image.members)
        raise BadRequest(f"image {image.name} has the parity of {names} and not their blocks, which this needs")


def read_places(places: bytes) -> Iterator[BlockPlace]:
    return (BlockPlace(*each) for each in _PLACE.iter_unpack(places))


def differing(before: bytes, now: bytes) -> Iterator[int]:
    """Yield the numbers of the blocks whose hashes differ, of as many blocks each."""
    part = _PART_BLOCKS * _PLACE.size  # of an image to the next one, most parts stay where they are
    for first in range(0, len(now), part):
        if before[first : first + part] != now[first : first + part]:
            for at in range(first, min(first + part, len(now)), _PLACE.size):
                if before[at : at + HASH_BYTES] != now[at : at + HASH_BYTES]:
                    yield at // _PLACE.size


def write_places(places: Sequence[BlockPlace]) -> bytes:
    return b"".join(_PLACE.pack(each.id, each.pack, each.slot) for each in places)


def digest_of(places: Iterator[BlockPlace], hash_of: BlockHash) -> bytes:
    return hash_of(b"".join(each.id for each in places))


def block_offsets(facts: ArenaFacts) -> Iterator[int]:
    """Yield the offset of each block, ascending."""
    for offset, size in facts.allocations:
        yield from range(offset, offset + size, BLOCK_BYTES)


class BlockNumbers:
    """The numbers of an arena's blocks, from 0 on by offset, and the offset of each."""

    def __init__(self, facts: ArenaFacts) -> None:
        self._starts = [offset for offset, _ in facts.allocations]
        self._before = list(accumulate((size // BLOCK_BYTES for _, size in facts.allocations), initial=0))

    @property
    def count(self) -> int:
        return self._before[-1]

    def number(self, offset: int) -> int:
        """Return the number of the block that begins at the offset.  Raise BadRequest if none does."""
        at = bisect_right(self._starts, offset) - 1
        if at >= 0 and (offset - self._starts[at]) % BLOCK_BYTES == 0:
            number = self._before[at] + (offset - self._starts[at]) // BLOCK_BYTES
            if number < self._before[at + 1]:
                return number
        raise BadRequest(f"no block of the arena begins at offset {offset:#x}")


def is_moment(seconds: float) -> bool:
    """Return whether an image can have this time."""
    return 0 <= seconds <= _LATEST


def check_facts(arenas: Sequence[ArenaFacts]) -> None:
    """Check what an image is to be made of.  Raise BadRequest."""
    if not arenas:
        raise BadRequest("an image has at least one arena")
    if len(arenas) > MOST_ARENAS:
        raise BadRequest(f"an image of {len(arenas)} arenas: {MOST_ARENAS} at most")
    if len({each.name for each in arenas}) < len(arenas):
        raise BadRequest("an arena is named twice")
    for each in arenas:
        if why := _why_not(each):
            raise BadRequest(f"arena {each.name:.140}: {why}")


def _why_not(facts: ArenaFacts) -> str:
    if max(len(facts.name), len(facts.gpu)) > MOST_TEXT:
        return f"its name and that of its GPU have {MOST_TEXT} characters at most"
    end = 0
    for offset, size in facts.allocations:
        if size <= 0 or offset % BLOCK_BYTES or size % BLOCK_BYTES:
            return f"an allocation of {size} bytes at {offset:#x} is not of whole blocks"
        if offset < end:
            return f"the allocation at {offset:#x} overlaps the one before it"
        end = offset + size
    if not end <= facts.window_bytes <= MOST_WINDOW_BYTES:
        return f"its memory ends at {end:#x}, its window at {facts.window_bytes:#x}"
    if len(facts.layout) > MOST_LAYOUT_BYTES or len(facts.state) > MOST_STATE_BYTES:
        return f"a layout of {len(facts.layout)} bytes, a state of {len(facts.state)}"
    return ""


def encode(manifest: Manifest, hash_of: BlockHash) -> bytes:
    """Return the bytes of the manifest's file.  Raise BadRequest if it is larger than the limit."""
    body = msgspec.msgpack.encode(manifest)
    if len(body) + BODY_AT > MOST_MANIFEST_BYTES:
        raise BadRequest(f"the image's manifest of {len(body)} bytes is over the limit of {MOST_MANIFEST_BYTES}")
    head = _HEAD.pack(_MAGIC, MAJOR, MINOR, len(body))
    return head + hash_of(head + body) + body


def decode(data: bytes, hash_of: BlockHash) -> Manifest:
    """Parse a manifest's file.  Raise ImageDamaged with the reason: it is cut off, changed, or of another version."""
    if len(data) < BODY_AT:
        raise ImageDamaged(f"its manifest has {len(data)} bytes, fewer than a head")
    magic, major, _, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ImageDamaged("its manifest does not begin as one")
    if major != MAJOR:
        raise ImageDamaged(f"its manifest has version {major}, this mpsd reads {MAJOR}")
    if length != len(data) - BODY_AT:
        raise ImageDamaged(f"its manifest's body has {len(data) - BODY_AT} bytes, {length} are declared")
    if hash_of(data[: _HEAD.size] + data[BODY_AT:]) != data[_HEAD.size : BODY_AT]:
        raise ImageDamaged("its manifest was changed: the hash differs")
    try:
        found = msgspec.msgpack.decode(data[BODY_AT:], type=Manifest)
        check_facts([each.facts for each in found.arenas])
        if found.members:
            check_facts([each.facts for each in found.members])
        if found.epoch is not None:
            check_epoch(found.epoch)
    except (msgspec.MsgspecError, UnicodeDecodeError, BadRequest) as exc:
        raise ImageDamaged(f"its manifest is none: {exc}") from None
    if not (is_moment(found.instant) and is_moment(found.written_at)):
        raise ImageDamaged("its manifest has a time that is none")
    for each in found.arenas:
        count = BlockNumbers(each.facts).count
        if len(each.places) != count * _PLACE.size or len(each.origins) not in (0, count * HASH_BYTES):
            raise ImageDamaged(f"its manifest does not name every block of arena {each.facts.name}")
    for member in found.members:
        if len(member.ids) != BlockNumbers(member.facts).count * HASH_BYTES:
            raise ImageDamaged(f"its manifest does not have the hash of every block of arena {member.facts.name}")
    return found
