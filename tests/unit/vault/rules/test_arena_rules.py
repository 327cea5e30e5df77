"""Rules for arenas: names, sizes, quotas, and the order of eviction."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from mpsd.errors import BadRequest, NoRoom, TooMany
from mpsd.fairness.uid_ranges import parse
from mpsd.model.arena import GRANULE, WINDOW_UNIT, Arena, ArenaSpec
from mpsd.model.process import ProcessId
from mpsd.vault.rules.eviction import expires_at, plan_eviction
from mpsd.vault.rules.settings import Eviction, VaultSettings
from mpsd.vault.rules.spec import MOST_READERS, check_readers, check_spec
from mpsd.vault.rules.usage import ArenaAccount, Bounds, are_of_one_user

GIB = 1 << 30
USER, OTHER, OPERATOR = 1000, 1001, 0
SETTINGS = VaultSettings(
    memory_share=0.5, user_memory_bytes=6 * GIB, max_arenas=3, user_arenas=2, max_allocations=10, user_allocations=6,
    layout_bytes=8000, operators=frozenset({OPERATOR}),
)  # fmt: skip
BOUNDS = Bounds(SETTINGS, 20 * GIB, lease_bytes=4 * GIB)


def arena(uid: int = USER, *, number: int = 1, capacity: int = 4 * GIB, lease: int | None = None, **facts) -> Arena:
    return Arena(number, f"a{number}", uid, uid, 0o600, "GPU-1", 0, 2 * capacity, capacity, 0.0, lease_id=lease, **facts)


def account(*held: tuple[int, int, int]) -> ArenaAccount:
    """Of arenas of users, each with so many GiB in so many allocations."""
    made = ArenaAccount()
    for number, (uid, gib, allocations) in enumerate(held):
        made.add(arena(uid, number=number + 10, lease=7))
        made.move(arena(uid, lease=7), gib * GIB, allocations)
    return made


@pytest.mark.parametrize(
    ("asker", "capacity", "lease", "why"),
    [
        pytest.param(USER, 6, None, None, id="as much as a user may"),
        pytest.param(USER, 7, None, "user 1000 may have 6 GiB", id="more than a user may"),
        pytest.param(OPERATOR, 10, None, None, id="an operator has no quota"),
        pytest.param(OPERATOR, 11, None, "the GPU may have 10 GiB", id="but the GPU has"),
        pytest.param(USER, 4, 7, None, id="as much as the lease"),
        pytest.param(USER, 5, 7, "lease 7 may have 4 GiB", id="more than the lease"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(asker, capacity, lease, why):
    wanted = arena(asker, capacity=capacity * GIB, lease=lease)
    bounds = BOUNDS if lease else replace(BOUNDS, lease_bytes=None)
    if why is None:
        ArenaAccount().check_arena(wanted, bounds)
        return
    with pytest.raises(NoRoom, match=why):
        ArenaAccount().check_arena(wanted, bounds)


@pytest.mark.parametrize(
    ("asker", "more", "is_kept"),
    [
        pytest.param(OTHER, 1, True, id="one of a user with many"),
        pytest.param(USER, 257, True, id="many of a user with none"),
        pytest.param(USER, 256, False, id="a few of a user with none"),
        pytest.param(OPERATOR, 1000, False, id="many of an operator"),
    ],
)
def test_the_last_allocations_are_for_users_with_few(asker: int, more: int, is_kept: bool) -> None:
    """Two users with their quotas kept out all others, and root."""
    bounds = replace(BOUNDS, settings=replace(SETTINGS, max_allocations=131072, user_allocations=65536), lease_bytes=None)
    made = account((OTHER, 0, 57344), (OTHER + 1, 0, 57344))
    with pytest.raises(NoRoom, match="kept for operators") if is_kept else nullcontext():
        made.check_growth(arena(asker), 0, more, bounds)


@pytest.mark.parametrize(
    ("there", "asker", "why"),
    [
        pytest.param([], USER, None, id="the first"),
        pytest.param([(USER, 0, 0)] * 2, USER, "user_arenas", id="a user's third"),
        pytest.param([(USER, 0, 0)] * 2, OTHER, None, id="another user's first"),
        pytest.param([(OPERATOR, 0, 0)] * 2, OPERATOR, None, id="an operator's third"),
        pytest.param([(OPERATOR, 0, 0)] * 3, OPERATOR, "max_arenas", id="one too many of all"),
    ],
)
def test_how_many_there_may_be(there, asker, why):
    if why is None:
        account(*there).check_number(arena(asker), BOUNDS)
        return
    with pytest.raises(NoRoom, match=why):
        account(*there).check_number(arena(asker), BOUNDS)


def test_one_user_cannot_take_all_addresses():
    made = ArenaAccount()
    made.add(arena(capacity=3 << 40))
    with pytest.raises(NoRoom, match="addresses"):
        made.check_number(arena(number=2), BOUNDS)
    made.check_number(arena(OTHER, number=2), BOUNDS)


def test_one_user_cannot_take_all_addresses_by_growing():
    made, one = ArenaAccount(), arena(capacity=2 << 40)
    made.add(one)
    made.check_addresses(one, 2 << 40, BOUNDS)
    with pytest.raises(NoRoom, match="addresses"):
        made.check_addresses(one, 3 << 40, BOUNDS)
    made.add(arena(number=2, capacity=2 << 40))
    made.check_addresses(one, 0, BOUNDS)  # a user who has more, of an mpsd that let it grow, can still change it
    made.check_addresses(arena(OTHER), 2 << 40, BOUNDS)


@pytest.mark.parametrize(
    ("there", "one", "growth", "count", "why"),
    [
        pytest.param([], arena(used_bytes=3 * GIB), GIB, 1, None, id="up to its capacity"),
        pytest.param([], arena(used_bytes=3 * GIB), GIB + GRANULE, 1, "arena a1 cannot take", id="over it"),
        pytest.param([(USER, 5, 1)], arena(), GIB, 1, None, id="up to the user's quota"),
        pytest.param([(USER, 5, 1)], arena(), 2 * GIB, 1, "arenas of user 1000 hold 5 GiB of 6 GiB", id="over it"),
        pytest.param([(USER, 5, 1)], arena(OTHER), 2 * GIB, 1, None, id="that is another's quota"),
        pytest.param([(OTHER, 6, 1), (USER, 3, 1)], arena(), 2 * GIB, 1, "of the GPU hold 9 GiB of 10", id="over the GPU's"),
        pytest.param([(OTHER, 3, 1)], arena(lease=7), 2 * GIB, 1, "lease 7 hold 3 GiB of 4 GiB", id="over the lease's"),
        pytest.param([(USER, 6, 1)], arena(), 0, 0, None, id="what replaces takes nothing"),
        pytest.param([(USER, 7, 1)], arena(used_bytes=GIB), -GIB, -1, None, id="less is always allowed"),
        pytest.param([(USER, 0, 5)], arena(), GIB, 1, None, id="the user's last allocation"),
        pytest.param([(USER, 0, 5)], arena(), GIB, 2, "user_allocations", id="one too many of a user"),
        pytest.param([(OTHER, 0, 6), (USER, 0, 3)], arena(), GIB, 2, "max_allocations", id="one too many of all"),
        pytest.param([(OPERATOR, 0, 9)], arena(OPERATOR), GIB, 1, None, id="an operator up to the last"),
    ],
)
def test_how_much_may_be_put(there, one, growth, count, why):
    bounds = BOUNDS if one.lease_id else replace(BOUNDS, lease_bytes=None)
    if why is None:
        account(*there).check_growth(one, growth, count, bounds)
        return
    with pytest.raises(NoRoom, match=why):
        account(*there).check_growth(one, growth, count, bounds)


@pytest.mark.parametrize(
    ("uid", "has", "size", "is_allowed"),
    [
        (USER, 0, 1000, True),
        (USER, 0, 1001, False),
        (USER, 2000, 1500, True),
        (OPERATOR, 0, 8000, True),
        (OPERATOR, 0, 8001, False),
    ],
)
def test_layouts_have_a_limit_too(uid, has, size, is_allowed):
    """A user's is an eighth; what becomes smaller is always allowed."""
    one = arena(uid, layout_bytes=has)
    made = ArenaAccount()
    made.add(one)
    if is_allowed:
        made.check_layout(one, size, BOUNDS)
        return
    with pytest.raises(NoRoom, match="layouts"):
        made.check_layout(one, size, BOUNDS)


def test_the_uids_of_one_range_have_one_share():
    """One person may act as any of 65,536 users."""
    made = ArenaAccount(parse("eve:100000:65536\n").share_of)
    for number, uid in enumerate((100_001, 100_002)):
        one = arena(uid, number=number, layout_bytes=500)
        made.add(one)
        made.move(one, 3 * GIB, 3)
    third = arena(100_003)
    for check in (
        lambda: made.check_number(third, BOUNDS),
        lambda: made.check_growth(third, GIB, 0, BOUNDS),
        lambda: made.check_growth(third, 0, 1, BOUNDS),
        lambda: made.check_layout(third, 1, BOUNDS),
    ):
        with pytest.raises(NoRoom, match=r"user 10000[03]"):
            check()
    made.check_number(arena(OTHER), BOUNDS)


def test_containers_that_are_not_known_have_one_share():
    """Root of each of them may be any user, here and before the last boot; the users themselves have theirs."""
    made = ArenaAccount()
    for number, uid in enumerate((USER, OTHER)):
        made.add(replace(arena(uid, number=number), pid_namespace=0))
    with pytest.raises(NoRoom, match="the group of containers whose pid namespace is not known has 2 arenas"):
        made.check_number(replace(arena(OTHER + 1), pid_namespace=0), BOUNDS)
    for other in (arena(USER), replace(arena(USER), pid_namespace=0, is_of_owner=True), replace(arena(USER), pid_namespace=7)):
        made.check_number(other, replace(BOUNDS, settings=replace(SETTINGS, max_arenas=64)))


def test_the_last_arenas_are_for_users_with_few_and_for_operators():
    """Four users with the default quota took all."""
    bounds = replace(BOUNDS, settings=replace(SETTINGS, max_arenas=64, user_arenas=60))
    made = account(*[(USER, 0, 0)] * 56)
    with pytest.raises(NoRoom, match="arenas: the last 8 of 64 are kept"):
        made.check_number(arena(), bounds)
    made.check_number(arena(OTHER), bounds)
    made.check_number(arena(OPERATOR), bounds)


def test_what_came_and_went_is_counted_as_nothing():
    made, one = ArenaAccount(), arena(lease=7)
    made.add(one)
    made.move(one, GIB, 3)
    larger = replace(one, layout_bytes=50, window_bytes=100 * GIB)
    made.change(one, larger)
    made.move(larger, -GIB, -3)
    made.remove(larger)
    assert (made.arenas, made.allocations, made.used_bytes["GPU-1"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("capacity", "window", "expected"),
    [
        pytest.param(GRANULE, None, (GRANULE, WINDOW_UNIT), id="the smallest"),
        pytest.param(GRANULE + 1, None, (2 * GRANULE, WINDOW_UNIT), id="rounded up"),
        pytest.param(GIB, GIB, (GIB, GIB), id="no more room than it holds"),
        pytest.param(GRANULE - 1, None, None, id="too small"),
        pytest.param(0, None, None, id="nothing"),
        pytest.param((1 << 42) + 1, None, None, id="too large"),
        pytest.param(2 * GIB, GIB, None, id="a window that is too small"),
        pytest.param(GIB, 1 << 44, None, id="a window that is too large"),
        pytest.param(GIB, 0, None, id="no window"),
    ],
)
def test_what_may_be_asked_for(capacity, window, expected):
    spec = ArenaSpec("a", "0", capacity, window)
    if expected is not None:
        assert check_spec(spec) == expected
        return
    with pytest.raises(BadRequest):
        check_spec(spec)


@pytest.mark.parametrize(
    ("uids", "expected"),
    [
        pytest.param([], True, id="none mapped yet"),
        pytest.param([(1000, 1000)], True, id="unshare -U"),
        pytest.param([(1000, 1000), (100_000, 165_535)], True, id="with subordinate uids"),
        pytest.param([(0, 2**32 - 2)], False, id="a container's, with all"),
        pytest.param([(1_000_000, 1_000_999_999)], False, id="a container's, with a billion"),
    ],
)
def test_which_user_namespaces_a_user_may_have_made(uids: list[tuple[int, int]], expected: bool) -> None:
    assert are_of_one_user(uids) == expected


def test_readers_have_a_limit():
    readers = tuple(ProcessId(pid, 1) for pid in range(1, MOST_READERS + 1))
    check_readers(arena(readers=readers[1:]), MOST_READERS - 1, is_preferred=True)
    with pytest.raises(TooMany):
        check_readers(arena(readers=readers), 0, is_preferred=True)


@pytest.mark.parametrize(
    ("total", "own", "is_preferred", "is_admitted"),
    [
        pytest.param(223, 223, False, True, id="one user alone"),
        pytest.param(224, 224, False, False, id="but not the last places"),
        pytest.param(224, 3, False, True, id="which are for users with few readers"),
        pytest.param(255, 200, True, True, id="and for the owner"),
    ],
)
def test_one_user_leaves_readers_to_others(total: int, own: int, is_preferred: bool, is_admitted: bool) -> None:
    readers = tuple(ProcessId(pid, 1) for pid in range(1, total + 1))
    with nullcontext() if is_admitted else pytest.raises(TooMany, match="the last 32 of 256"):
        check_readers(arena(readers=readers), own, is_preferred=is_preferred)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(arena(unheld_since=100.0), None, id="without a time"),
        pytest.param(arena(unheld_since=100.0, ttl_seconds=5.0), 105.0, id="with one"),
        pytest.param(arena(ttl_seconds=5.0, writer=ProcessId(1, 1)), None, id="held by a writer"),
        pytest.param(arena(ttl_seconds=5.0, readers=(ProcessId(1, 1),), unheld_since=1.0), None, id="held by a reader"),
    ],
)
def test_when_its_time_is_over(one, expected):
    assert expires_at(one) == expected


OLD = arena(number=1, used_bytes=2 * GIB, unheld_since=10.0)
YOUNG = arena(number=2, used_bytes=GIB, unheld_since=20.0, ttl_seconds=5.0)
THEIRS = arena(OTHER, number=3, used_bytes=GIB, unheld_since=1.0)
HELD = arena(number=4, used_bytes=9 * GIB, readers=(ProcessId(1, 1),))
EMPTY = arena(number=5, unheld_since=0.0)
ELSEWHERE = replace(arena(number=6, used_bytes=GIB, unheld_since=0.0), gpu="GPU-2")
ALL = (YOUNG, OLD, THEIRS, HELD, EMPTY, ELSEWHERE)


@pytest.mark.parametrize(
    ("eviction", "evicts_all", "wanted", "now", "expected"),
    [
        pytest.param(Eviction.OFF, True, GIB, 99.0, [], id="off"),
        pytest.param(Eviction.UNHELD, False, GIB, 99.0, [1], id="the longest ago, as little as is enough"),
        pytest.param(Eviction.UNHELD, False, 2 * GIB + 1, 99.0, [1, 2], id="then the next"),
        pytest.param(Eviction.UNHELD, False, 1 << 50, 99.0, [1, 2], id="never what is held, empty, elsewhere, or another's"),
        pytest.param(Eviction.UNHELD, True, GIB, 99.0, [3], id="another's where that is allowed"),
        pytest.param(Eviction.EXPIRED, False, GIB, 24.9, [], id="its time is not over"),
        pytest.param(Eviction.EXPIRED, False, GIB, 25.0, [2], id="its time is over"),
        pytest.param(Eviction.UNHELD, False, 0, 99.0, [], id="nothing is wanted"),
    ],
)
def test_what_goes_when_room_is_short(eviction, evicts_all, wanted, now, expected):
    settings = VaultSettings(eviction=eviction, evicts_all=evicts_all)
    assert [each.id for each in plan_eviction(ALL, "GPU-1", wanted, USER, now, settings)] == expected
