"""The user that a uid's share counts against."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.config.paths import subordinate_uids
from mpsd.fairness.uid_ranges import UidRanges, of_ranges, parse

TEXT = """eve:100000:65536
bob:165536:65536
root:1000000:1000000000
0:500:9
1003:300000:1
mallory:0:65536
junk
a:b:c
x:-1:5
"""


@pytest.mark.parametrize(
    ("uid", "share"),
    [
        (0, 0),
        (1000, 1000),
        (99999, 99999),
        (100000, 100000),
        (165535, 100000),
        (165536, 165536),
        (231071, 165536),
        (231072, 231072),
        (300000, 300000),
        (300001, 300001),
        (504, 504),
        (1065535, 1000000),
        (2000000, 1983040),
        (1001000000, 1001000000),
        (2**32 - 2, 2**32 - 2),
    ],
)
def test_the_uids_of_a_range_have_the_share_of_its_first(uid: int, share: int) -> None:
    """Not those of a range of root with ordinary users in it, nor of one with root in it."""
    assert parse(TEXT).share_of(uid) == share
    assert UidRanges().share_of(uid) == uid


def test_each_container_of_a_long_range_has_a_share() -> None:
    """Kubernetes takes the uids of every pod with a user namespace from the range of user kubelet."""
    ranges = parse("kubelet:65536:7208960\n")
    assert [ranges.share_of(uid) for uid in (65536, 131071, 131072, 131073)] == [65536, 65536, 131072, 131072]


def test_a_uid_behind_a_range_within_a_range_has_the_share_of_the_outer_one() -> None:
    ranges = parse("lxd:1000000:1000000\nuser:1065536:10\n")
    assert [ranges.share_of(uid) for uid in (1000001, 1065540, 1065550)] == [1000000, 1065536, 1065536]


RANGES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda each: (each[0], sum(each))), max_size=8)


@given(RANGES, st.integers(0, 90))
def test_the_innermost_range_is_the_one_that_begins_last(ranges: list[tuple[int, int]], uid: int) -> None:
    inside = [first for first, end in ranges if first <= uid < end]
    assert of_ranges(ranges).share_of(uid) == max(inside, default=uid)


class Counted(int):
    """A uid that counts its comparisons."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < other

    __hash__ = int.__hash__


def test_a_uid_behind_all_ranges_costs_no_search_through_them() -> None:
    """A search took 2 ms for each connection of an ordinary user behind 65,536 ranges."""
    ranges = parse("".join(f"u{n}:{100_000 + 10 * n}:5\n" for n in range(60_000)))
    Counted.comparisons = 0
    assert ranges.share_of(Counted(2_000_000)) == 2_000_000
    assert 0 < Counted.comparisons < 40


def test_a_machine_without_the_file_has_no_ranges(tmp_path: Path) -> None:
    assert subordinate_uids(tmp_path / "subuid") == UidRanges()
    (tmp_path / "subuid").write_bytes(b"eve:100000:65536\n\xff:7:7\n")
    assert subordinate_uids(tmp_path / "subuid").share_of(100009) == 100000
