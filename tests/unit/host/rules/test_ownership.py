"""The directories that mpsd relies on: one row for each rule, and the message for each of the others."""

import stat

import pytest

from mpsd.host.rules.ownership import PathEntry, judge_last, judge_on_the_way

OURS, OTHER = 1000, 1001


def directory(uid: int, mode: int, *, is_private_group: bool = False) -> PathEntry:
    return PathEntry("/some/where", uid, stat.S_IFDIR | mode, is_private_group)


def link(uid: int) -> PathEntry:
    return PathEntry("/some/link", uid, stat.S_IFLNK | 0o777)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        pytest.param(directory(0, 0o755), "", id="root's"),
        pytest.param(directory(OURS, 0o755), "", id="ours"),
        pytest.param(directory(0, 0o1777), "", id="/tmp"),
        pytest.param(directory(7, 0o755), "", id="of the owner of /"),
        pytest.param(directory(OURS, 0o775, is_private_group=True), "", id="umask 002"),
        pytest.param(link(0), "", id="root's link"),
        pytest.param(directory(OTHER, 0o755), "belongs to another user", id="another's"),
        pytest.param(directory(OTHER, 0o1777), "belongs to another user", id="another's, sticky"),
        pytest.param(link(OTHER), "belongs to another user", id="another's link"),
        pytest.param(directory(0, 0o777), "every user may rename", id="anybody's"),
        pytest.param(directory(0, 0o775), "its group may rename", id="a group's"),
    ],
)
def test_a_directory_on_the_way(entry: PathEntry, words: str) -> None:
    said = judge_on_the_way(entry, OURS, root_uid=7)
    assert words in said
    assert bool(words) is bool(said)
    assert not said or f"uid {entry.uid}, mode {stat.S_IMODE(entry.mode):04o}" in said


@pytest.mark.parametrize(
    ("entry", "words", "tightens", "shared_words"),
    [
        pytest.param(directory(0, 0o755), "", False, "", id="root's"),
        pytest.param(directory(OURS, 0o755), "", False, "", id="ours"),
        pytest.param(directory(OURS, 0o777), "", True, "", id="ours, mode 0777"),
        pytest.param(directory(OURS, 0o775), "", True, "", id="ours, a group's"),
        pytest.param(directory(OURS, 0o775, is_private_group=True), "", True, "", id="ours, umask 002"),
        pytest.param(directory(0, 0o775, is_private_group=True), "", False, "", id="root's and its group's"),
        pytest.param(directory(0, 0o777), "may not change that", False, "", id="root's, mode 0777"),
        pytest.param(directory(OURS, 0o1777), "is shared", False, "", id="ours, sticky"),
        pytest.param(directory(0, 0o1777), "is shared", False, "", id="/tmp itself"),
        pytest.param(directory(OTHER, 0o755), "another user", False, "another user", id="another's"),
        pytest.param(directory(7, 0o755), "another user", False, "another user", id="of the owner of /"),
    ],
)
def test_the_directory_itself(entry: PathEntry, words: str, tightens: bool, shared_words: str) -> None:
    for may_be_shared, expected in ((False, words), (True, shared_words)):
        said, is_tightened = judge_last(entry, OURS, may_be_shared=may_be_shared)
        assert expected in said
        assert bool(expected) is bool(said)
        assert is_tightened is tightens
