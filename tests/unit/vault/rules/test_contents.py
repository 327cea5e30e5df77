"""The contents of an arena: as a table, and against a model at random."""

import random

import pytest

from mpsd.errors import BadRequest
from mpsd.model.arena import GRANULE, Allocation
from mpsd.vault.rules.contents import Contents
from tests.seeds import seeds

WINDOW = 64 * GRANULE


def one(place: int, size: int = 1, serial: int = 0) -> Allocation:
    return Allocation(place * GRANULE, size * GRANULE, serial)


def places(allocations) -> list[int]:
    return [each.offset // GRANULE for each in allocations]


def filled() -> Contents:
    """Committed 0-1 and 4, of which 4 is dropped; fresh 8-9."""
    contents = Contents()
    contents.put(contents.plan_put([one(0, 2, 1), one(4, 1, 2)], WINDOW))
    contents.commit()
    contents.drop(contents.plan_drop([4 * GRANULE]))
    contents.put(contents.plan_put([one(8, 2, 3)], WINDOW))
    return contents


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param([one(2)], None, id="beside what is committed"),
        pytest.param([one(63)], None, id="at the end"),
        pytest.param([one(63, 2)], "ends behind the window", id="over the end"),
        pytest.param([one(1)], "is there", id="over what is committed"),
        pytest.param([one(0, 2)], "is there", id="what is committed, once more"),
        pytest.param([one(2, 3)], "free after the next commit", id="over what is dropped"),
        pytest.param([one(4)], "free after the next commit", id="in its place"),
        pytest.param([one(7, 2)], "is there", id="over the beginning of what is fresh"),
        pytest.param([one(9)], "is there", id="over the end of what is fresh"),
        pytest.param([one(8)], "is there", id="shorter than what is fresh"),
        pytest.param([one(8, 3)], "is there", id="longer than what is fresh"),
        pytest.param([one(8, 2)], None, id="what is fresh, once more"),
        pytest.param([one(20, 2), one(21)], "overlaps another one", id="over itself"),
        pytest.param([one(21), one(20)], None, id="in any order"),
        pytest.param([one(20), one(20)], "overlaps another one", id="twice"),
        pytest.param([one(20, 0)], "multiples", id="nothing"),
        pytest.param([one(20, -1)], "multiples", id="less than nothing"),
        pytest.param([one(-1)], "multiples", id="before the window"),
        pytest.param([Allocation(1, GRANULE, 0)], "multiples", id="a crooked place"),
        pytest.param([Allocation(0, GRANULE + 1, 0)], "multiples", id="a crooked size"),
    ],
)
def test_what_may_be_put_where(asked, why):
    contents = filled()
    if why is None:
        contents.put(contents.plan_put(asked, WINDOW))
        assert contents.used_bytes == (5 + sum(places_of(asked))) * GRANULE
        return
    with pytest.raises(BadRequest, match=why):
        contents.plan_put(asked, WINDOW)
    assert (contents.used_bytes, contents.count) == (5 * GRANULE, 3)


def places_of(asked) -> list[int]:
    """How much each adds; what replaces something adds nothing."""
    return [0 if each == one(8, 2) else each.bytes // GRANULE for each in asked]


@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [(None, 1, [0]), (0, 9, [4]), (1, 9, [4]), (4 * GRANULE, 9, []), (None, 9, [0, 4])],
)
def test_pages(after, limit, expected):
    assert places(filled().committed_after(after, limit)) == expected


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_against_a_model_at_random(seed):
    """The model is a plain table of granules."""
    chance = random.Random(seed)
    contents, kept, now = Contents(), {}, {}
    for serial in range(1, 1500):
        match chance.randrange(10):
            case 0:
                contents.commit()
                kept = dict(now)
            case 1 if chance.random() < 0.2:
                contents.roll_back()
                now = dict(kept)
            case 2 | 3 | 4:
                place = chance.choice([*now, 0])
                contents.drop(contents.plan_drop([place * GRANULE]))
                now.pop(place, None)
            case _:
                wanted = one(chance.randrange(64), chance.randrange(1, 4), serial)
                place, size = wanted.offset // GRANULE, wanted.bytes // GRANULE
                held = [*kept.items(), *now.items()]
                taken = {each for start, count in held for each in range(start, start + count)}
                is_free = place + size <= 64 and not taken & set(range(place, place + size))
                is_again = now.get(place) == size and place not in kept
                try:
                    contents.put(contents.plan_put([wanted], WINDOW))
                    assert is_free or is_again
                    now[place] = size
                except BadRequest:
                    assert not is_free
                    assert not is_again
        assert places(contents.committed_after(None, 1000)) == sorted(kept)
        assert contents.used_bytes == sum({**kept, **now}.values()) * GRANULE
