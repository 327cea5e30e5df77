"""The user database: what it says, and that a database that says nothing makes nobody an operator and nobody wait for ever."""

import grp
import pwd
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from mpsd.host import user_database, user_lookups
from mpsd.host.user_database import AdminGroup, UserDatabase
from mpsd.host.user_lookups import ask_now, gid_of, is_member, is_private_group
from tests.running import running

ROOT = 0  # whom every user database has; in a container it may not have the user who runs the tests
SHORT_SECONDS = 0.1
ROOTS_GID = pwd.getpwuid(ROOT).pw_gid
ROOTS_GROUP = grp.getgrgid(ROOTS_GID).gr_name


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A database that answers nothing until the event is set."""
    speaks = threading.Event()

    def listen(real):
        def ask(key):
            speaks.wait(60)
            return real(key)

        return ask

    monkeypatch.setattr(user_lookups.grp, "getgrnam", listen(grp.getgrnam))
    monkeypatch.setattr(user_lookups.pwd, "getpwuid", listen(pwd.getpwuid))
    yield speaks
    speaks.set()


def test_a_user_is_a_member_of_its_own_group() -> None:
    assert is_member(ROOT, ROOTS_GROUP)


@pytest.mark.parametrize(("uid", "name"), [(ROOT, "no-such-group"), (2**31 - 7, ROOTS_GROUP)])
def test_who_or_what_is_not_there_is_no_member(uid: int, name: str) -> None:
    assert not is_member(uid, name)


def test_a_group_may_list_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    name = pwd.getpwuid(ROOT).pw_name
    listed = grp.struct_group(("staff", "x", 2**31 - 9, [name]))
    monkeypatch.setattr(user_lookups.grp, "getgrnam", lambda asked: listed)
    assert is_member(ROOT, "staff")


def test_a_group_has_an_id_or_is_not_there() -> None:
    assert gid_of(ROOTS_GROUP) == ROOTS_GID
    assert gid_of("no-such-group") is None


@pytest.mark.parametrize(
    ("gid", "members", "is_private"), [(70, [], True), (70, ["me"], True), (70, ["me", "you"], False), (71, [], False)]
)
def test_a_private_group_has_its_users_name_and_no_other_member(
    monkeypatch: pytest.MonkeyPatch, gid: int, members: list[str], is_private: bool
) -> None:
    monkeypatch.setattr(user_lookups.pwd, "getpwuid", lambda uid: pwd.struct_passwd(("me", "x", uid, 70, "", "/", "/bin/sh")))
    monkeypatch.setattr(user_lookups.grp, "getgrgid", lambda gid: grp.struct_group(("me", "x", gid, members)))
    assert is_private_group(70, gid) is is_private


async def test_nobody_waits_longer_than_the_deadline(silent: threading.Event) -> None:
    users = UserDatabase(threads=1, seconds=SHORT_SECONDS)
    with pytest.raises(trio.TooSlowError):
        await users.ask(lambda: is_member(ROOT, ROOTS_GROUP))
    with pytest.raises(trio.TooSlowError):
        await users.ask(lambda: True)  # the only thread still waits for the first answer: no more threads are started
    silent.set()
    with trio.fail_after(10):
        while True:
            with suppress(trio.TooSlowError):
                assert await users.ask(lambda: is_member(ROOT, ROOTS_GROUP))
                break


def test_the_default_holds_if_there_is_no_answer(silent: threading.Event) -> None:
    assert ask_now(lambda: is_member(ROOT, ROOTS_GROUP), default=False, seconds=SHORT_SECONDS) is False
    silent.set()
    assert ask_now(lambda: is_member(ROOT, ROOTS_GROUP), default=False) is True


async def test_a_group_that_is_not_known_has_no_members(silent: threading.Event) -> None:
    group = AdminGroup(ROOTS_GROUP, seconds=SHORT_SECONDS)
    await group.look_up()
    assert group.gid() is None
    silent.set()
    with trio.fail_after(10):
        while group.gid() is None:
            await group.look_up()
    assert group.gid() == ROOTS_GID


async def test_a_silent_database_takes_no_rights_away(silent: threading.Event) -> None:
    group = AdminGroup(ROOTS_GROUP, seconds=SHORT_SECONDS)
    silent.set()
    await group.rename(ROOTS_GROUP)
    before = group.gid()
    silent.clear()
    await group.look_up()
    assert before == group.gid() == ROOTS_GID
    await group.rename("another")
    assert group.gid() is None  # but another group gets none of the earlier one's


async def test_no_name_is_no_group() -> None:
    group = await AdminGroup.named("")
    assert group.gid() is None


async def test_the_group_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made while mpsd runs."""
    answers = [None, 70]
    is_over = trio.Event()

    def answer(name: str) -> int | None:
        if not answers:
            trio.from_thread.run_sync(is_over.set)
        return answers.pop(0) if answers else 70

    monkeypatch.setattr(user_database, "gid_of", answer)
    monkeypatch.setattr(user_database, "_REFRESH_SECONDS", 0.001)
    group = await AdminGroup.named("late")
    assert group.gid() is None
    with trio.fail_after(20):
        async with running(group.run):
            await is_over.wait()
    assert group.gid() == 70
