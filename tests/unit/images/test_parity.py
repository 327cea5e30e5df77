"""Images with the parity of arenas instead of their blocks: the rules, the XOR, and what the store does with them."""

import json
import random
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest
from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.images.__main__ import main
from mpsd.images.blocks import sums_of
from mpsd.images.copying import copy
from mpsd.images.parity import combine, make_parity
from mpsd.images.rules.manifest import (
    BLOCK_BYTES,
    ArenaFacts,
    Manifest,
    MemberImage,
    block_offsets,
    decode,
    encode,
)
from mpsd.images.rules.parity import MOST_MEMBERS, NAMES, check_gpus, factors, parity_facts
from mpsd.images.rules.refusals import ImageDamaged, NoSuchImage
from mpsd.images.rules.retention import plan_removal
from mpsd.images.rules.transfer import offer_of
from mpsd.images.store import Images
from tests.seeds import seeds
from tests.unit.images.making import block, facts, stored_blocks, take

LEFT, RIGHT = {0: 10, 1: 11, 3: 12}, {1: 20, 2: 21}


def slow_xor(blocks: Sequence[bytes]) -> bytes:
    return reduce(lambda one, other: one ^ other, (int.from_bytes(each, "big") for each in blocks)).to_bytes(BLOCK_BYTES, "big")


def take_parity(images: Images, name: str, instant: float = 1.0) -> Manifest:
    """As the imager does, of two arenas."""
    arenas = [(facts(*sorted(each), name=arena), each) for arena, each in (("left", LEFT), ("right", RIGHT))]
    hash_of, parity = images.directory.hash_of, bytearray(BLOCK_BYTES)
    with images.begin(name, "g") as new:
        for place in sorted(LEFT.keys() | RIGHT.keys()):
            make_parity([block(each[place]) if place in each else None for _, each in arenas], parity)
            new.add(NAMES[0], place * BLOCK_BYTES, parity)
        ids = [[hash_of.name_of(sums_of(block(each[at]), hash_of.block_key)) for at in sorted(each)] for _, each in arenas]
        members = [MemberImage(each, b"".join(those)) for (each, _), those in zip(arenas, ids, strict=True)]
        return new.finish(instant, [parity_facts(NAMES[0], [each for each, _ in arenas])], members=members)


def times(one: int, other: int) -> int:
    """Multiply polynomials over GF(2), and divide by 0x11d: as on paper."""
    product = reduce(lambda so_far, bit: so_far ^ (one << bit if other >> bit & 1 else 0), range(8), 0)
    for bit in range(14, 7, -1):
        product ^= 0x11D << (bit - 8) if product >> bit & 1 else 0
    return product


def slow_q(blocks: Sequence[bytes | None]) -> bytes:
    power, found = 1, bytes(BLOCK_BYTES)
    for each in blocks:
        if each is not None:
            table = bytes(times(power, byte) for byte in range(256))
            found = slow_xor([found, each.translate(table)])
        power = times(power, 2)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_parity_is_as_a_slow_reference_has_it(count: int) -> None:
    chosen = random.Random(count)
    blocks = [chosen.randbytes(BLOCK_BYTES) if number % 3 != 1 else None for number in range(count)]
    p, q, alone = bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    make_parity(blocks, p, q)
    make_parity(blocks, alone)
    assert p == alone == slow_xor([bytes(BLOCK_BYTES), *(each for each in blocks if each is not None)])
    assert q == slow_q(blocks)


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_any_two_lost_blocks_come_back(seed: int) -> None:
    """Of the members, or one of them and P."""
    chosen = random.Random(seed)
    count = chosen.choice([2, 3, 4, 9, MOST_MEMBERS])
    kinds = [chosen.randbytes(BLOCK_BYTES) for _ in range(3)]
    blocks = [kinds[number % 3] for number in range(count)]
    p, q, of_p, of_q = (bytearray(BLOCK_BYTES) for _ in range(4))
    make_parity(blocks, p, q)
    for _ in range(3):
        lost, other = chosen.sample([*range(count), None], 2)
        if lost is None:
            lost, other = other, None
        assert lost is not None
        make_parity([None if number in (lost, other) else each for number, each in enumerate(blocks)], of_p, of_q)
        make_parity([p if other is not None else kinds[0], of_p], of_p)
        make_parity([q, of_q], of_q)
        combine(factors(lost, other), of_p, of_q, of_p)
        assert of_p == blocks[lost]


def test_every_pair_of_members_has_one_solution() -> None:
    """The powers of 2 differ, so the equations of P and Q are independent."""
    powers = [1]
    while len(powers) < MOST_MEMBERS:
        powers.append(times(powers[-1], 2))
    assert len(set(powers)) == MOST_MEMBERS
    for lost, other in [(0, 1), (1, 0), (3, 200), (254, 0), (253, 254)]:
        of_p, of_q = factors(lost, other)
        assert of_p ^ times(of_q, powers[lost]) == 1, "the lost block once"
        assert of_p ^ times(of_q, powers[other]) == 0, "and the other one not at all"


def test_a_result_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((BufferError, TypeError, ValueError)):
        make_parity([block(1)], bytes(BLOCK_BYTES))


def test_parity_has_a_block_wherever_an_arena_has_one() -> None:
    empty = ArenaFacts("none", "GPU-3", 0, BLOCK_BYTES, BLOCK_BYTES, ())
    made = parity_facts(NAMES[0], [facts(0, 1, 5), facts(1, 2), empty])
    assert made.allocations == ((0, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, BLOCK_BYTES))
    assert made.window_bytes == 6 * BLOCK_BYTES
    assert parity_facts(NAMES[0], []).allocations == ()


@pytest.mark.parametrize(("gpus", "parity", "why"), [
    (["GPU-1", "GPU-2", "GPU-3"], 1, ""),
    (["GPU-1", "GPU-2", "GPU-3"], 2, ""),
    (["GPU-1", "GPU-2"], 3, "for 3 lost GPUs; accepted: 1 or 2"),
    (["GPU-1"], 1, "needs two"),
    ([], 1, "needs two"),
    ([f"GPU-{number}" for number in range(256)], 1, "255 at most"),
    (["GPU-1", "GPU-2", "GPU-1"], 1, "2 of them are on GPU GPU-1"),
])  # fmt: skip
def test_the_loss_of_a_gpu_takes_one_block_of_a_stripe(gpus: list[str], parity: int, why: str) -> None:
    if why:
        with pytest.raises(BadRequest, match=why):
            check_gpus(gpus, parity)
    else:
        check_gpus(gpus, parity)


def test_the_image_has_the_parity_and_the_hash_of_each_block(images: Images) -> None:
    made = take_parity(images, "p")
    found = images.find("p")
    assert found == made
    assert (found.series, found.content_bytes) == ("g+parity", 4 * BLOCK_BYTES)
    parity, offsets = bytearray(BLOCK_BYTES), list(block_offsets(found.arenas[0].facts))
    expected = [slow_xor([block(each[place]) for each in (LEFT, RIGHT) if place in each]) for place in range(4)]
    with images.reader("p") as image:
        for offset, content in zip(offsets, expected, strict=True):
            image.read_into(0, offset, parity)
            assert parity == content
    assert list(images.verify()) == []


def test_the_program_shows_what_it_protects(images: Images, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    take_parity(images, "p")
    assert main(["show", "p", "--directory", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "parity of the arenas below, whose own blocks are not stored" in lines
    assert [line.split(":")[0] for line in lines[-2:]] == ["arena left", "arena right"]
    assert main(["show", "p", "--json", "--directory", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["members"]] == ["left", "right"]
    assert main(["verify", "p", "--directory", str(path)]) == 0
    assert main(["copy", "p", str(path.with_name("other")), "--directory", str(path)]) == 1
    assert "has the parity of left, right and not their blocks" in capsys.readouterr().err


def test_it_is_not_taken_for_an_image_of_its_arenas(images: Images, tmp_path: Path) -> None:
    """Not even for one of an arena that has the name of the parity's."""
    whole = take(images, "whole", LEFT, arena="left")
    take_parity(images, "p", instant=2.0)
    assert images.newest("left") == whole
    with pytest.raises(NoSuchImage):
        images.newest(NAMES[0])
    with images.reader("p") as image, Images.open(tmp_path / "other") as other:
        with pytest.raises(BadRequest, match="has the parity of left, right and not their blocks"):
            image.arena("left")
        with pytest.raises(BadRequest, match="has the parity"):
            copy(image, other, "p")
        with pytest.raises(BadRequest, match="has the parity"):
            offer_of(image.manifest, "p")
        assert other.listing().images == ()


def test_a_later_parity_replaces_no_image_of_the_group(images: Images) -> None:
    with images.begin("whole", "g") as new:
        new.add("left", 0, block(1))
        new.finish(1.0, [facts(0, name="left")])
    take_parity(images, "old", instant=2.0)
    take_parity(images, "new", instant=3.0)
    gone = plan_removal(images.listing().images, 4.0, 1, None)
    assert [each.name for each in gone] == ["old"]


def test_equal_stripes_are_stored_once(images: Images) -> None:
    take_parity(images, "first")
    before = stored_blocks(images)
    take_parity(images, "second", instant=2.0)
    assert stored_blocks(images) == before


def test_a_manifest_without_the_hash_of_a_block_is_damaged(images: Images) -> None:
    made = take_parity(images, "p")
    hash_of = images.directory.hash_of
    short = replace(made, members=(made.members[0], MemberImage(facts(1), b"")))
    with pytest.raises(ImageDamaged, match="does not have the hash of every block of arena model"):
        decode(encode(short, hash_of), hash_of)
    twice = replace(made, members=made.members[:1] * 2)
    with pytest.raises(ImageDamaged, match="named twice"):
        decode(encode(twice, hash_of), hash_of)
