"""Which Unix groups a user is known to be in, and how seldom the user database is asked."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from mpsd.host import unix_groups
from mpsd.host.unix_groups import UnixGroups
from mpsd.host.user_database import UserDatabase
from mpsd.host.user_lookups import ask_now

SHORT_SECONDS = 0.1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The uids that the database was asked for; everybody is in the group a alone."""
    found: list[int] = []
    monkeypatch.setattr(unix_groups, "is_member", lambda uid, name: found.append(uid) or name == "a")
    return found


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    speaks = threading.Event()
    monkeypatch.setattr(unix_groups, "is_member", lambda uid, name: speaks.wait(60))
    yield speaks
    speaks.set()


async def test_each_user_is_looked_up_once_until_the_settings_change(asked: list[int]) -> None:
    known = UnixGroups()
    assert await known.learn(1000, [])  # no quota depends on it: no lookup
    for _ in range(3):
        assert await known.learn(1000, ["a", "b"])
        assert known.of(1000, ["a", "b"]) == ("a",)
    assert asked == [1000, 1000]
    known.forget()
    assert known.of(1000, ["a"]) == ("a",)  # until there is a newer answer
    await known.learn(1000, ["a"])
    assert len(asked) == 3


async def test_a_user_whom_the_database_does_not_know_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While sssd is down it knows no user of a network: until a reload they had the quotas of no group."""
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    known = UnixGroups()
    assert await known.learn(0, ["root"])
    assert known.of(0, ["root"]) == ()
    monkeypatch.undo()
    assert await known.learn(0, ["root"])
    assert known.of(0, ["root"]) == ("root",)
    assert not known._lacks(0, ["root"])


async def test_only_so_many_users_are_remembered(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_groups, "_MOST_USERS", 3)
    known = UnixGroups()
    for uid in range(10):
        await known.learn(uid, ["a"])
    assert [uid for uid in range(10) if known.of(uid, ["a"])] == [7, 8, 9]


async def test_quotas_of_a_range_are_those_of_its_share(asked: list[int]) -> None:
    known = UnixGroups(share_of=lambda uid: 100_000)
    await known.learn(100_007, ["a"])
    assert known.of(100_000, ["a"]) == known.of(100_007, ["a"]) == ("a",)


async def test_a_silent_database_says_nothing_and_keeps_nobody(silent: threading.Event) -> None:
    known = UnixGroups(users=UserDatabase(seconds=SHORT_SECONDS))
    assert not await known.learn(1000, ["a"])
    assert known.of(1000, ["a"]) == ()
    silent.set()
    assert await known.learn(1000, ["a"])
    assert known.of(1000, ["a"]) == ("a",)


async def test_a_user_with_many_uids_takes_one_thread(silent: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one who has a slow entry in the database, or many uids that are in none, would keep all others waiting."""
    monkeypatch.setattr(unix_groups, "is_member", lambda uid, name: uid < 1000 or silent.wait(60))
    known = UnixGroups(share_of=lambda uid: 5000 if uid >= 1000 else uid, users=UserDatabase(threads=2, seconds=5.0))
    async with trio.open_nursery() as nursery:
        for uid in range(1000, 1020):
            nursery.start_soon(known.learn, uid, ["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert await known.learn(7, ["a"])
        silent.set()


async def test_a_user_whose_questions_are_given_up_takes_no_further_thread(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a question that was given up goes on: each further uid took another one, until no user was left one."""
    monkeypatch.setattr(unix_groups, "is_member", lambda uid, name: uid < 1000 or silent.wait(60))
    known = UnixGroups(share_of=lambda uid: 5000 if uid >= 1000 else uid, users=UserDatabase(threads=2, seconds=SHORT_SECONDS))
    for uid in range(1000, 1004):
        assert not await known.learn(uid, ["a"])
    for _ in range(20):  # a busy machine may take longer than the deadline
        if await known.learn(7, ["a"]):
            break
    assert known.of(7, ["a"]) == ("a",)
    silent.set()
    with trio.fail_after(30):
        while not await known.learn(1000, ["a"]):
            pass


async def test_an_answer_to_an_earlier_question_is_asked_for_again(silent: threading.Event) -> None:
    known = UnixGroups()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(known.learn, 1000, ["a"])
        await trio.testing.wait_all_tasks_blocked()
        known.forget()
        silent.set()
    assert known._lacks(1000, ["a"])


def test_those_of_an_earlier_mpsd_are_learnt_at_once(asked: list[int]) -> None:
    known = UnixGroups()
    known.learn_now([1000, 1001], ["a"])
    assert sorted(asked) == [1000, 1001]
    assert known.of(1001, ["a"]) == ("a",)
    known.learn_now([1002], [])
    assert sorted(asked) == [1000, 1001]


def test_the_start_waits_for_a_bounded_time(silent: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_groups, "ask_now", partial(ask_now, seconds=SHORT_SECONDS))
    known = UnixGroups()
    known.learn_now([1000], ["a"])
    assert known.of(1000, ["a"]) == ()

