"""Budgets and the queue: what fits, the order, and that no request waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.leases.rules.admission import grant_of_lease, hindrance_of, memory_part_of, part_of, refusal_of
from mpsd.leases.rules.budgets import (
    AmountKind,
    Owner,
    Scope,
    ScopeLevel,
    ScopeLimits,
    first_blocked,
    lease_amounts,
    shortage,
    to_millionths,
)
from mpsd.leases.rules.queue import AGING_SECONDS, Demand, QueueOrder, QueuePlan, Waiting, in_order, plan
from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.model.device import Device
from mpsd.model.lease import Lease, LeaseSpec, LeaseState, Refusal, Selector, SelectorKind

GPU = "GPU-a"
OTHER = "GPU-b"
DEVICES = (Device(0, GPU, "A", 1000, "0"), Device(1, OTHER, "B", 1000, "1"))
ALICE = Owner(1000, ("staff",))
SM = Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu=GPU)
BACKFILL = 5.0


def lease(sm: float = 50.0, state: LeaseState = LeaseState.ACTIVE, **fields: object) -> Lease:
    spec = LeaseSpec("a lease", Selector(SelectorKind.UID, "1000"), sm_percent=sm, **fields)
    return Lease(7, 1000, spec, state, 0.0, None)


def limits(**changed: object) -> ScopeLimits:
    terms = AdmissionSettings(**changed)
    return ScopeLimits(terms, DEVICES, {"7": 2}, lambda uid: terms.quota_of(("staff",) if uid == ALICE.uid else ()))


# -- resources ---------------------------------------------------------------------------------------------------

LIMITS = [
    (SM, {}, 100_000_000),
    (SM, {"sm_oversubscription": 1.25}, 125_000_000),
    (Scope(ScopeLevel.MACHINE, AmountKind.MEMORY, gpu=GPU), {"memory_oversubscription": 0.9}, 900),
    (Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu="GPU-gone"), {}, 0),
    (Scope(ScopeLevel.MACHINE, AmountKind.LEASES, gpu=GPU), {}, None),
    (Scope(ScopeLevel.MACHINE, AmountKind.CLIENTS), {"max_clients": 5}, 5),
    (Scope(ScopeLevel.LEASE, AmountKind.PROCESSES, "7"), {}, 2),
    (Scope(ScopeLevel.LEASE, AmountKind.PROCESSES, "8"), {}, 0),
    (Scope(ScopeLevel.USER, AmountKind.SM, "1000", GPU), {}, None),
    (Scope(ScopeLevel.USER, AmountKind.SM, "1000", GPU), {"user_sm_percent": 40.0}, 40_000_000),
    (Scope(ScopeLevel.USER, AmountKind.MEMORY, "1000", GPU), {"user_memory_bytes": 12}, 12),
    (Scope(ScopeLevel.USER, AmountKind.CLIENTS, "1000"), {"user_clients": 3}, 3),
    (Scope(ScopeLevel.USER, AmountKind.CLIENTS, "1000"), {"user_clients": 3, "group_quotas": {"staff": Quota(clients=9)}}, 9),
    (Scope(ScopeLevel.USER, AmountKind.CLIENTS, "1001"), {"user_clients": 3, "group_quotas": {"staff": Quota(clients=9)}}, 3),
    (Scope(ScopeLevel.USER, AmountKind.LEASES, "1000"), {"user_leases": 4}, 4),
    (Scope(ScopeLevel.GROUP, AmountKind.LEASES, "staff"), {"group_totals": {"staff": Quota(leases=2)}}, 2),
    (Scope(ScopeLevel.GROUP, AmountKind.LEASES, "other"), {"group_totals": {"staff": Quota(leases=2)}}, None),
]


@pytest.mark.parametrize(("scope", "changed", "expected"), LIMITS)
def test_limits(scope: Scope, changed: dict[str, object], expected: int | None) -> None:
    assert limits(**changed).of(scope) == expected


@pytest.mark.parametrize(
    ("percent", "parts"), [(100.0, 3), (100.0, 7), (33.3, 1), (0.1, 10), (99.999999, 9), (66.6, 6), (1e-4, 1)]
)
def test_parts_never_add_up_to_more(percent: float, parts: int) -> None:
    whole = to_millionths(percent)
    assert abs(whole - percent * 1e6) < 1.001
    assert parts * part_of(lease(percent, processes=parts)) <= whole
    assert parts * to_millionths(percent / parts) <= whole + 1e-9


# -- what a lease and a client take ----------------------------------------------------------------------------------


def test_a_lease_takes_of_each_gpu_and_of_its_owners_quotas() -> None:
    amounts = lease_amounts(lease(30, memory_bytes={GPU: 5}), [GPU, OTHER], ALICE)
    share = 30_000_000
    expected = {
        Scope(ScopeLevel.MACHINE, AmountKind.MEMORY, gpu=GPU): 5,
        Scope(ScopeLevel.USER, AmountKind.MEMORY, "1000", GPU): 5,
        Scope(ScopeLevel.GROUP, AmountKind.MEMORY, "staff", GPU): 5,
    }
    for gpu in (GPU, OTHER):
        expected |= {
            Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu=gpu): share,
            Scope(ScopeLevel.MACHINE, AmountKind.LEASES, gpu=gpu): 1,
            Scope(ScopeLevel.USER, AmountKind.SM, "1000", gpu): share,
            Scope(ScopeLevel.GROUP, AmountKind.SM, "staff", gpu): share,
        }
    assert amounts == expected


def test_an_operators_lease_is_under_no_quota() -> None:
    assert {scope.level for scope in lease_amounts(lease(), [GPU], None)} == {ScopeLevel.MACHINE}


HINDRANCES = [
    (None, {}, ""),
    (None, {"default": "refuse"}, "no lease names it, and clients without one may not run"),
    (lease(), {"default": "refuse"}, ""),
    (lease(state=LeaseState.QUEUED), {}, "its lease 7 waits for room itself"),
]


@pytest.mark.parametrize(("its_lease", "changed", "words"), HINDRANCES)
def test_what_is_in_a_clients_way(its_lease: Lease | None, changed: dict[str, object], words: str) -> None:
    terms = AdmissionSettings(**changed)
    assert hindrance_of(its_lease, terms) == words
    assert refusal_of(its_lease, terms) == (words if its_lease is None else "")


def test_a_grant_says_which_rule_gave_it() -> None:
    one = lease(60, processes=3, memory_bytes={GPU: 10}, priority=1)
    grant = grant_of_lease(one, [GPU, OTHER], part_of(one))
    assert (grant.sm_percent, dict(grant.memory_bytes), grant.priority) == (20.0, {GPU: 3}, 1)
    assert grant.rule == "lease 7 names its user 1000; one of its 3 processes"
    assert memory_part_of(one, [OTHER]) == {}


def test_refusals_have_names_that_a_configuration_can_say() -> None:
    assert [way.value for way in Refusal] == ["wait", "error", "end"]


# -- the ledger ------------------------------------------------------------------------------------------------------


def test_the_lowest_bound_explains_why_it_does_not_fit() -> None:
    """A user at the quota gets that reason, rather than a full GPU, which does not concern this user."""
    amounts = lease_amounts(lease(50), [GPU], ALICE)
    used = {
        SM: 60_000_000,
        Scope(ScopeLevel.USER, AmountKind.SM, "1000", GPU): 30_000_000,
        Scope(ScopeLevel.MACHINE, AmountKind.LEASES, gpu=GPU): 2,
    }
    terms = limits(user_sm_percent=60.0)
    blocked = first_blocked(amounts, terms.of, used, {})
    assert blocked == Scope(ScopeLevel.USER, AmountKind.SM, "1000", GPU)
    assert shortage(blocked, amounts, terms, used) == "quota of user 1000, GPU-a, SMs: 50 % asked, 30 % of 60 % taken"
    words = shortage(SM, amounts, limits(), used, 10_000_000)
    assert words == "GPU-a, SMs: 50 % asked, 60 % of 100 % taken by 2 leases, 10 % set aside for those ahead"


# -- the queue -------------------------------------------------------------------------------------------------------


def one(number: int, sm: float, arrived: float = 0.0, priority: int = 0, deadline: float | None = None, **more: str) -> Waiting:
    return Waiting(number, number, priority, arrived, deadline, {SM: to_millionths(sm)}, **more)


def order(now: float) -> QueueOrder:
    return QueueOrder(BACKFILL, now)


def decide(waiting: list[Waiting], used: float, now: float) -> QueuePlan:
    return plan(waiting, limits(), {SM: to_millionths(used)}, order(now))


ORDERS = [
    pytest.param([one(1, 1), one(2, 1)], 0.0, [1, 2], id="who came first"),
    pytest.param([one(1, 1, priority=1), one(2, 1)], 0.0, [2, 1], id="priority"),
    pytest.param([one(1, 1), one(2, 1, deadline=99.0)], 0.0, [2, 1], id="the earlier deadline"),
    pytest.param([one(1, 1, deadline=98.0), one(2, 1, deadline=99.0)], 0.0, [1, 2], id="... of two"),
    pytest.param([one(1, 1, priority=1), one(2, 1, deadline=99.0)], 0.0, [2, 1], id="priority before deadline"),
    pytest.param([one(1, 1, priority=1), one(2, 1, 90.0)], 119.0, [1, 2], id="age makes up for priority"),
    pytest.param([one(1, 1), one(2, 1, 90.0, deadline=126.0)], 120.0, [1, 2], id="and for deadlines"),
    pytest.param([one(1, 1, priority=1), one(2, 1)], 1000.0, [2, 1], id="all grow old alike"),
    pytest.param([one(1, 1, 50.0), one(2, 1, 40.0)], 0.0, [1, 2], id="a clock that was set back"),
]


@pytest.mark.parametrize(("waiting", "now", "expected"), ORDERS)
def test_order(waiting: list[Waiting], now: float, expected: list[int]) -> None:
    assert [each.key for each in in_order(waiting, order(now))] == expected


PLANS = [
    pytest.param([one(1, 50), one(2, 50), one(3, 1)], 0, 0.0, [1, 2], id="as many as fit"),
    pytest.param([one(1, 50), one(2, 20)], 60, 0.0, [2], id="a small one passes"),
    pytest.param([one(1, 50), one(2, 20)], 60, 5.0, [], id="for so long only"),
    pytest.param([one(1, 20), one(2, 50)], 80, 5.0, [1], id="the first goes in as soon as it fits"),
    pytest.param([one(1, 50), one(2, 20, 1.0), one(3, 20, 2.0)], 60, 6.0, [], id="none of those behind it"),
    pytest.param([one(1, 50, hindrance="x"), one(2, 40)], 60, 99.0, [2], id="one that room is no use to is passed"),
    pytest.param([one(1, 101), one(2, 40)], 60, 99.0, [2], id="so is one that can never fit"),
    pytest.param([one(1, 70), one(2, 20)], 20, 5.0, [1], id="what is set aside is enough"),
]


@pytest.mark.parametrize(("waiting", "used", "now", "expected"), PLANS)
def test_plan(waiting: list[Waiting], used: float, now: float, expected: list[int]) -> None:
    decided = decide(waiting, used, now)
    assert list(decided.admitted) == expected
    assert {*decided.admitted, *decided.reasons} == {each.key for each in waiting}
    assert all(decided.reasons.values())


def test_one_at_its_own_quota_holds_nobody_else_up() -> None:
    """Else a user could stop the machine by queueing what he will never get."""
    quota = Scope(ScopeLevel.USER, AmountKind.SM, "1000")
    mine = Waiting(1, 1, 0, 0.0, None, {SM: 10, quota: 10})
    others = [Waiting(2, 2, 0, 0.0, None, {SM: 99_999_999}), Waiting(3, 3, 0, 0.0, None, {SM: 1, quota: 1})]
    terms = ScopeLimits(AdmissionSettings(), DEVICES, {}, lambda uid: Quota(sm_percent=10 / 1e6))
    assert plan([mine, *others], terms, {quota: 5}, order(99.0)).admitted == (2,)


def test_what_nobody_waits_for_is_anybodys() -> None:
    """A request that fits in addition to all waiting ones needs no place in the queue."""
    demand = Demand()
    demand.add({SM: 30_000_000})
    assert demand.leaves_room_for({SM: 20_000_000}, limits(), {SM: 50_000_000})
    assert not demand.leaves_room_for({SM: 20_000_001}, limits(), {SM: 50_000_000})
    demand.add({SM: 30_000_000}, -1)
    assert demand.total == {}


SIZES = st.integers(1, 60)
NEWCOMERS = st.lists(
    st.tuples(SIZES, st.sampled_from([0, 1]), st.one_of(st.none(), st.integers(1, 30)), st.integers(2, 6)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(size=st.integers(80, 100), priority=st.sampled_from([0, 1]), newcomers=NEWCOMERS)
def test_nobody_starves(size: int, priority: int, newcomers: list[tuple[int, int, int | None, int]]) -> None:
    """One large request, and an endless stream of newer ones that are smaller, more urgent, or have deadlines.

    Those that come in the first two steps of age may go first, and each has its time; no other passes.
    """
    large = one(0, size, 0.0, priority)
    waiting: dict[object, Waiting] = {0: large}
    running: list[tuple[float, int]] = []  # until when, how much
    most_seconds = 6
    bound = 2 * AGING_SECONDS + 2 * AGING_SECONDS * most_seconds + most_seconds
    now, number = 0.0, 0
    while 0 in waiting:
        assert now <= bound
        running = [(end, amount) for end, amount in running if end > now]
        waiting = {key: each for key, each in waiting.items() if each.deadline is None or each.deadline > now}
        number += 1
        sm, level, patience, seconds = newcomers[number % len(newcomers)]
        waiting[number] = one(number, sm, now, level, None if patience is None else now + patience)
        used = sum(amount for _, amount in running)
        decided = plan(waiting.values(), limits(), {SM: used}, order(now))
        for key in decided.admitted:
            amount = waiting.pop(key).amounts[SM]
            used += amount
            running.append((now + seconds, amount))
        assert used <= 100_000_000
        now += 1.0


@given(
    waiting=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 1), st.integers(0, 40)), max_size=15),
    used=st.integers(0, 100),
)
def test_a_plan_never_exceeds_a_budget_and_wastes_no_free_room(waiting: list[tuple[int, int, int]], used: int) -> None:
    entries = [one(number, sm, float(arrived), priority) for number, (sm, priority, arrived) in enumerate(waiting)]
    decided = decide(entries, used, 40.0)
    taken = used + sum(entries[int(str(key))].amounts[SM] / 1e6 for key in decided.admitted)
    assert taken <= 100
    first = next((each for each in in_order(entries, order(40.0)) if each.amounts[SM] <= 100_000_000), None)
    if first is not None and first.amounts[SM] / 1e6 <= 100 - used:
        assert first.key in decided.admitted
