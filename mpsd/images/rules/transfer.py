"""The messages of a transfer, and the choice of the blocks that have to travel.  Prose: docs/images.md, "The stream".

    sender                     receiver
    Offer              ->
                       <-      Want, or NotTaken
    a block, a block   ->              each: 16 bytes of the SHA-256, then the 2 MiB
                       <-      Done, or NotTaken

A message is its length (u32 LE) and a MessagePack map.  Pure.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mpsd.errors import BadRequest
from mpsd.images.rules.block_hash import HASH_BYTES, Bytes
from mpsd.images.rules.manifest import (
    MOST_ALLOCATIONS,
    MOST_ARENAS,
    ArenaFacts,
    ArenaImage,
    BlockNumbers,
    Manifest,
    check_facts,
    check_has_blocks,
    is_moment,
    read_places,
)
from mpsd.images.rules.membership import Epoch, check_epoch
from mpsd.images.rules.naming import check_group, check_name

VERSION = 1
MOST_NAME = 100  # of an image that is received: its partial images have longer names
PARTIAL = ".partial"
MOST_BLOCKS = 1 << 21  # of an offer: 4 TiB, more than the GPUs of a machine have; each takes some 200 bytes here


class OfferedArena(Struct, frozen=True):
    """An arena; the hashes that the blocks have in the sender's directory, and in the one where the sender received it from."""

    facts: ArenaFacts
    ids: bytes
    origins: bytes = b""


class Offer(Struct, frozen=True, tag=True):
    """The image without its bytes."""

    version: int
    name: str
    group: str
    instant: float
    arenas: tuple[OfferedArena, ...]
    epoch: Epoch | None = None


class _UnreadOffer(Struct, frozen=True, tag=Offer.__struct_config__.tag):
    """An Offer whose arenas are still bytes."""

    version: int
    name: str
    group: str
    instant: float
    arenas: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MOST_ARENAS)]
    epoch: Epoch | None = None


class Want(Struct, frozen=True, tag=True):
    """The numbers of the blocks that have to travel, ascending, as (first, count); counted through all arenas."""

    ranges: Annotated[tuple[tuple[int, int], ...], Meta(max_length=MOST_ALLOCATIONS)]


class Done(Struct, frozen=True, tag=True):
    """The image is complete at the receiver."""


class NotTaken(Struct, frozen=True, tag="Refused"):
    """The receiver makes no image, for this reason."""

    why: str


Answer = Want | Done | NotTaken


def offer_of(image: Manifest, name: str) -> Offer:
    """Return the offer of an image that gets this name at the receiver.  Raise BadRequest for one of parity."""
    check_has_blocks(image)
    arenas = tuple(OfferedArena(each.facts, _ids(each), each.origins) for each in image.arenas)
    return Offer(VERSION, name, image.group, image.instant, arenas, image.epoch)


def _ids(arena: ArenaImage) -> bytes:
    return b"".join(place.id for place in read_places(arena.places))


def read_offer(data: Bytes) -> Offer:
    """Decode an offer, and check that an image can be made from it.  Raise BadRequest.

    An allocation takes 3 bytes in the message and some hundred in memory.  So each arena is checked before the next one is
    decoded: each allocation has at least one block, and MOST_BLOCKS limits those.
    """
    unread = decode_message(data, _UnreadOffer)
    assert isinstance(unread, _UnreadOffer)
    _check_head(unread)
    arenas: list[OfferedArena] = []
    blocks = 0
    for each in unread.arenas:
        arena = decode_message(each, OfferedArena)
        assert isinstance(arena, OfferedArena)
        check_facts([arena.facts])
        count = BlockNumbers(arena.facts).count
        blocks += count
        if blocks > MOST_BLOCKS:
            raise BadRequest(f"image {unread.name} has {blocks} blocks or more, one that is received {MOST_BLOCKS} at most")
        size = count * HASH_BYTES
        if len(arena.ids) != size or len(arena.origins) not in (0, size):
            raise BadRequest(f"arena {arena.facts.name}: the sender does not name each of its blocks")
        arenas.append(arena)
    check_facts([each.facts for each in arenas])
    return Offer(unread.version, unread.name, unread.group, unread.instant, tuple(arenas), unread.epoch)


def _check_head(offer: _UnreadOffer) -> None:
    if offer.version != VERSION:
        raise BadRequest(f"the sender speaks version {offer.version} of the stream, this mpsd {VERSION}")
    check_name(offer.name)
    if len(offer.name) > MOST_NAME:
        raise BadRequest(f"image name {offer.name}: an image that is received has a name of {MOST_NAME} characters at most")
    check_group(offer.group)
    if offer.group.endswith(PARTIAL):
        raise BadRequest(f"image {offer.name} is a part of one, which is not sent: send the whole image")
    if not is_moment(offer.instant):
        raise BadRequest(f"image {offer.name} has a time that is none")
    if offer.epoch is not None:
        check_epoch(offer.epoch)


def split_ids(ids: bytes) -> list[bytes]:
    return [ids[at : at + HASH_BYTES] for at in range(0, len(ids), HASH_BYTES)]


def block_ids(offer: Offer) -> list[bytes]:
    """Return the sender's hash of each block, through all arenas."""
    return [each for arena in offer.arenas for each in split_ids(arena.ids)]


def known_ids(images: Sequence[Manifest]) -> dict[bytes, bytes]:
    """Return the receiver's hash of each block it has, by that hash and by the hash at the block's sender.

    A sender can claim any hash, so the receiver's own hashes win.
    """
    known: dict[bytes, bytes] = {}
    own: set[bytes] = set()
    for arena in chain.from_iterable(each.arenas for each in images):
        ids = split_ids(_ids(arena))
        own.update(ids)
        if arena.origins:
            known.update(zip(split_ids(arena.origins), ids, strict=True))
    known.update((each, each) for each in own)
    return known


def plan_transfer(offer: Offer, known: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], list[int]]:
    """Return the blocks that the receiver has, as its own hash by the sender's, and the numbers of the blocks to send."""
    have: dict[bytes, bytes] = {}
    wanted: dict[bytes, int] = {}
    numbered = enumerate(zip(block_ids(offer), _origins(offer), strict=True))
    for number, (block_id, origin) in numbered:
        if block_id in have or block_id in wanted:
            continue
        own = known.get(block_id) or known.get(origin)
        if own is None:
            wanted[block_id] = number
        else:
            have[block_id] = own
    return have, list(wanted.values())


def _origins(offer: Offer) -> Iterator[bytes]:
    for arena in offer.arenas:
        yield from split_ids(arena.origins or arena.ids)


def to_ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as (first, count)."""
    ranges: list[tuple[int, int]] = []
    for each in numbers:
        if ranges and sum(ranges[-1]) == each:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((each, 1))
    return tuple(ranges)


def to_numbers(want: Want, count: int) -> list[int]:
    """Return the numbers, of an image of `count` blocks.  Raise BadRequest."""
    end = 0
    for first, size in want.ranges:
        if first < end or size <= 0 or first + size > count:
            raise BadRequest(f"the receiver asks for {size} blocks from {first} on, of an image of {count}")
        end = first + size
    return [number for first, size in want.ranges for number in range(first, first + size)]


def checksum(block: Bytes) -> bytes:
    """Return the hash that travels before a block."""
    return hashlib.sha256(block).digest()[:HASH_BYTES]


def partial_group(name: str) -> str:
    """Return the group of the images that keep the blocks which arrived so far for the image of this name."""
    return name + PARTIAL


def decode_message(data: Bytes | msgspec.Raw, kind: type) -> object:
    """Raise BadRequest if the bytes are no message of this kind."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise BadRequest(f"the other side sent something else than expected: {exc}") from None
