"""Which Unix groups a user is in, and how seldom that is asked."""

import grp
import pwd

import pytest

from mpsd.leases import groups
from mpsd.leases.groups import UnixGroups, is_member

ROOT = 0  # whom every user database has; in a container it may not have the user who runs the tests


def roots_group() -> str:
    return grp.getgrgid(pwd.getpwuid(ROOT).pw_gid).gr_name


def test_a_user_is_a_member_of_its_own_group():
    assert is_member(ROOT, roots_group())


@pytest.mark.parametrize(("uid", "name"), [(ROOT, "no-such-group"), (2**31 - 7, roots_group())])
def test_who_or_what_is_not_there_is_no_member(uid, name):
    assert not is_member(uid, name)


def test_a_group_may_list_its_members(monkeypatch):
    name = pwd.getpwuid(ROOT).pw_name
    listed = grp.struct_group(("staff", "x", 2**31 - 9, [name]))
    monkeypatch.setattr(groups.grp, "getgrnam", lambda asked: listed)
    assert is_member(ROOT, "staff")


def test_each_user_is_looked_up_once_until_the_settings_change(monkeypatch):
    asked = []
    monkeypatch.setattr(groups, "is_member", lambda uid, name: asked.append(uid) or name == "a")
    known = UnixGroups()
    assert known.of(1000, []) == ()  # no quota depends on it: no lookup
    assert [known.of(1000, ["a", "b"]) for _ in range(3)] == [("a",)] * 3
    assert asked == [1000, 1000]
    known.forget()
    known.of(1000, ["a"])
    assert len(asked) == 3


def test_only_so_many_users_are_remembered(monkeypatch):
    monkeypatch.setattr(groups, "is_member", lambda uid, name: False)
    monkeypatch.setattr(groups, "_MOST_USERS", 3)
    known = UnixGroups()
    for uid in range(10):
        known.of(uid, ["a"])
    assert len(known._known) == 3
