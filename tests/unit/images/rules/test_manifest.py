"""The manifest's bytes: what is read is what was written, or it is refused."""

import random

import pytest
from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import (
    BLOCK_BYTES,
    ArenaImage,
    BlockNumbers,
    BlockPlace,
    Manifest,
    block_offsets,
    check_facts,
    decode,
    differing,
    encode,
    read_places,
    write_places,
)
from mpsd.images.rules.refusals import ImageDamaged
from tests.seeds import seeds
from tests.unit.images.making import facts

HASH = BlockHash(bytes(32))
PLACES = (BlockPlace(bytes(16), 1, 0), BlockPlace(bytes([1] * 16), 0xFFFFFFFF, 7))
ARENA = facts(0, 9, layout=b"layout", state=b"state", commit=3, generation=2, state_generation=2)
MANIFEST = Manifest("first", "", 12.5, 13.0, bytes(16), (ArenaImage(ARENA, write_places(PLACES)),))


def test_what_is_read_is_what_was_written() -> None:
    assert decode(encode(MANIFEST, HASH), HASH) == MANIFEST
    assert tuple(MANIFEST.places()) == PLACES == tuple(read_places(MANIFEST.arenas[0].places))
    assert MANIFEST.arenas[0].place(1) == PLACES[1]


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_the_blocks_that_differ_are_those_with_other_hashes(seed: int) -> None:
    """And not those that are stored elsewhere."""
    chance = random.Random(seed)
    for count in (0, 1, 63, 64, 65, 300):
        before = [BlockPlace(chance.randbytes(16), 1, number) for number in range(count)]
        changed = set(chance.sample(range(count), min(count, chance.choice([0, 1, 5, count]))))
        moved = set(chance.sample(range(count), min(count, 3)))
        now = [
            BlockPlace(chance.randbytes(16) if n in changed else each.id, 2 if n in moved else 1, n)
            for n, each in enumerate(before)
        ]
        assert list(differing(write_places(before), write_places(now))) == sorted(changed)


def test_the_bytes_of_the_head_are_as_documented() -> None:
    data = encode(MANIFEST, HASH)
    assert data[:12] == b"mpsdimg\0\x01\0\0\0"
    assert int.from_bytes(data[12:16], "little") == len(data) - 32
    assert data[16:32] == HASH(data[:16] + data[32:])
    assert MANIFEST.arenas[0].places[24:] == bytes([1] * 16) + b"\xff\xff\xff\xff\x07\0\0\0"


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 33, -1])
def test_a_manifest_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(ImageDamaged):
        decode(encode(MANIFEST, HASH)[:cut], HASH)


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_a_changed_bit_anywhere_is_found(seed: int) -> None:
    data = encode(MANIFEST, HASH)
    for bit in random.Random(seed).sample(range(len(data) * 8), 500):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ImageDamaged):
            decode(bytes(changed), HASH)


def test_the_manifest_of_another_key_is_refused() -> None:
    with pytest.raises(ImageDamaged, match="the hash differs"):
        decode(encode(MANIFEST, HASH), BlockHash(b"k" * 32))


def test_a_manifest_that_lacks_blocks_is_refused() -> None:
    lacking = replace(MANIFEST, arenas=(replace(MANIFEST.arenas[0], places=write_places(PLACES[:1])),))
    with pytest.raises(ImageDamaged, match="every block"):
        decode(encode(lacking, HASH), HASH)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"allocations": ((0, BLOCK_BYTES), (0, BLOCK_BYTES))}, "overlaps"),
        ({"allocations": ((1, BLOCK_BYTES),)}, "whole blocks"),
        ({"allocations": ((0, BLOCK_BYTES - 1),)}, "whole blocks"),
        ({"allocations": ((0, 0),)}, "whole blocks"),
        ({"window_bytes": 9 * BLOCK_BYTES}, "window"),
        ({"layout": bytes((16 << 20) + 1)}, "layout"),
    ],
)
def test_facts_that_no_arena_has_are_refused(changed: dict[str, object], why: str) -> None:
    check_facts([ARENA])
    with pytest.raises(BadRequest, match=why):
        check_facts([replace(ARENA, **changed)])


def test_an_arena_is_named_once() -> None:
    with pytest.raises(BadRequest, match="twice"):
        check_facts([ARENA, ARENA])
    with pytest.raises(BadRequest, match="at least one"):
        check_facts([])


def test_blocks_are_numbered_by_their_offsets() -> None:
    gapped = replace(ARENA, allocations=((0, 2 * BLOCK_BYTES), (5 * BLOCK_BYTES, BLOCK_BYTES)))
    numbers = BlockNumbers(gapped)
    offsets = [0, BLOCK_BYTES, 5 * BLOCK_BYTES]
    assert list(block_offsets(gapped)) == offsets
    assert numbers.count == 3
    assert [numbers.number(each) for each in offsets] == [0, 1, 2]
    for wrong in (2 * BLOCK_BYTES, 6 * BLOCK_BYTES, 1, -BLOCK_BYTES):
        with pytest.raises(BadRequest):
            numbers.number(wrong)
