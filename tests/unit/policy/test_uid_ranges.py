"""Whose share a uid counts against."""

from pathlib import Path

import pytest

from mpsd.places import subordinate_uids
from mpsd.policy.uid_ranges import UidRanges, parse

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
        (2000000, 2000000),
        (2**32 - 2, 2**32 - 2),
    ],
)
def test_the_uids_of_a_range_have_the_share_of_its_first(uid: int, share: int) -> None:
    """Not those of a range of root's, nor of one with root in it: many users' uids are there."""
    assert parse(TEXT).share_of(uid) == share
    assert UidRanges().share_of(uid) == uid


def test_each_container_of_a_long_range_has_a_share() -> None:
    """Kubernetes takes the uids of every pod with a user namespace from the range of user kubelet."""
    ranges = parse("kubelet:65536:7208960\n")
    assert [ranges.share_of(uid) for uid in (65536, 131071, 131072, 131073)] == [65536, 65536, 131072, 131072]


def test_a_uid_behind_a_range_within_a_range_has_the_share_of_the_outer_one() -> None:
    ranges = parse("lxd:1000000:1000000\nuser:1065536:10\n")
    assert [ranges.share_of(uid) for uid in (1000001, 1065540, 1065550)] == [1000000, 1065536, 1065536]


def test_a_machine_without_the_file_has_no_ranges(tmp_path: Path) -> None:
    assert subordinate_uids(tmp_path / "subuid") == UidRanges()
    (tmp_path / "subuid").write_bytes(b"eve:100000:65536\n\xff:7:7\n")
    assert subordinate_uids(tmp_path / "subuid").share_of(100009) == 100000
