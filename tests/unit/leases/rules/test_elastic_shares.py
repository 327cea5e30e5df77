"""The elastic policy: who sinks, who rises, what is dealt, and when moving is worth it.  Time is a number here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.leases.rules.elastic_shares import (
    BATCH,
    INTERACTIVE,
    Elastic,
    FeedbackPlace,
    aim,
    begin,
    cost,
    deal,
    feed,
    gain,
    weigh,
)
from mpsd.leases.rules.group_shares import Group, GroupMember

SETTINGS = Elastic(cost_seconds=5.0)


def after(standing: FeedbackPlace, *rounds: tuple[float, float], start: float = 0.0) -> FeedbackPlace:
    """After rounds of (busy fraction, seconds), observed each second."""
    now = start
    for busy, seconds in rounds:
        for _ in range(int(seconds)):
            now += 1.0
            standing = feed(standing, busy, 1.0, now, SETTINGS)
    return standing


LEVELS = [
    pytest.param("interactive", [(0.3, 100)], INTERACTIVE, id="a quiet one stays"),
    pytest.param("interactive", [(1.0, 9)], INTERACTIVE, id="a short burst is no batch"),
    pytest.param("interactive", [(1.0, 9), (0.7, 1), (1.0, 9)], INTERACTIVE, id="bursts with pauses are none"),
    pytest.param("interactive", [(1.0, 10)], BATCH, id="one that is busy for long sinks"),
    pytest.param("interactive", [(1.0, 10), (0.2, 9)], BATCH, id="a short rest does not lift it"),
    pytest.param("interactive", [(1.0, 10), (0.2, 10)], INTERACTIVE, id="a long one does"),
    pytest.param("batch", [(1.0, 100)], BATCH, id="batch stays"),
    pytest.param("batch", [(0.1, 10)], INTERACTIVE, id="batch that rests may be interactive"),
    pytest.param("interactive", [(1.0, 299)], BATCH, id="until the boost"),
    pytest.param("interactive", [(1.0, 300)], INTERACTIVE, id="everybody starts again"),
    pytest.param("interactive", [(1.0, 310)], BATCH, id="and may sink again"),
]


@pytest.mark.parametrize(("level", "rounds", "expected"), LEVELS)
def test_feedback(level: str, rounds: list[tuple[float, float]], expected: int) -> None:
    assert after(begin(level, 0.0), *rounds).level == expected


def group(*members: GroupMember) -> Group:
    return Group(sum(member.part * member.parts for member in members), members)


def interactive(lease_id: int, part: float, busy: float | None = None, **more: object) -> GroupMember:
    return GroupMember(lease_id, part, level=INTERACTIVE, busy=busy, **{"held": (part,), **more})


def batch(lease_id: int, part: float, **more: object) -> GroupMember:
    return GroupMember(lease_id, part, level=BATCH, busy=1.0, **{"held": (part,), **more})


AIMS = [
    pytest.param([interactive(1, 50, 0.2), batch(2, 50)], {1: 15, 2: 85}, id="batch takes what is not used"),
    pytest.param([interactive(1, 50, 1.0), batch(2, 50)], {1: 75, 2: 25}, id="interactive first, with air"),
    pytest.param([interactive(1, 80, 1.0), batch(2, 20)], {1: 95, 2: 5}, id="batch keeps a quarter of its own"),
    pytest.param([interactive(1, 50), batch(2, 50)], {1: 50, 2: 50}, id="nobody measured"),
    pytest.param([interactive(1, 50, 0.0), batch(2, 50)], {1: 12.5, 2: 87.5}, id="idle ones keep a floor"),
    pytest.param([interactive(1, 40, 1.0), interactive(2, 20, 1.0), batch(3, 40)], {1: 60, 2: 30, 3: 10}, id="two share"),
    pytest.param([interactive(1, 50, 0.2), interactive(2, 50, 0.4)], {1: 100 / 3, 2: 200 / 3}, id="no batch: by need"),
    pytest.param([batch(1, 30), batch(2, 60)], {1: 30, 2: 60}, id="batch alone"),
    pytest.param([interactive(1, 50, 0.2), batch(2, 50, held=())], {1: 100}, id="batch that is not there gets nothing"),
]


@pytest.mark.parametrize(("members", "expected"), AIMS)
def test_aims(members: list[GroupMember], expected: dict[int, float]) -> None:
    found = aim(group(*members), SETTINGS)
    assert {member.lease_id: found[member.lease_id] for member in members if member.present} == pytest.approx(expected)


def test_shares_move_only_when_it_is_worth_what_it_costs() -> None:
    """The same group, and processes that take ever longer to start."""
    of = group(interactive(1, 50, 0.2), batch(2, 50))
    wanted = aim(of, SETTINGS)
    worth = gain(of, wanted, SETTINGS)
    assert worth == pytest.approx(35 * 60.0)  # percent, for as long as the deal is expected to hold
    assert cost(of, wanted, SETTINGS) == 100.0 * SETTINGS.cost_seconds  # both start anew
    assert deal(of, Elastic(cost_seconds=20.9)) == wanted
    assert deal(of, Elastic(cost_seconds=21.1)) == {1: 50.0, 2: 50.0}


def test_a_deal_that_holds_shorter_is_worth_less() -> None:
    of = group(interactive(1, 50, 0.2), batch(2, 50))
    assert deal(of, Elastic(cost_seconds=5.0, horizon_seconds=10.0)) == {1: 50.0, 2: 50.0}


def test_who_starts_anyway_costs_nothing() -> None:
    of = group(interactive(1, 50, 0.2, held=(), starting=1), batch(2, 50, held=(), starting=1))
    assert deal(of, Elastic(cost_seconds=1e9))[2] == pytest.approx(85.0)


def test_small_swings_of_load_move_nothing() -> None:
    """A deal once made is in force until another is much better: shares do not go to and fro."""
    shares = {1: 50.0, 2: 50.0}
    moves = 0
    for busy in [0.50, 0.55, 0.45, 0.52, 0.48] * 4:
        used = busy * 50.0
        of = group(
            interactive(1, 50, used / shares[1], held=(shares[1],), dealt=shares[1]),
            batch(2, 50, held=(shares[2],), dealt=shares[2]),
        )
        new = dict(deal(of, Elastic(cost_seconds=6.0)))
        moves += new != shares
        shares = new
    assert moves <= 1


def test_interactive_work_is_worth_more_than_batch_work() -> None:
    """Moving a percent from the one to the other is a gain although as much work is done."""
    of = group(interactive(1, 50, 1.0), batch(2, 50))
    assert gain(of, {1: 60.0, 2: 40.0}, SETTINGS) > 0 > gain(of, {1: 40.0, 2: 60.0}, SETTINGS)


def test_a_share_dealt_to_others_is_not_counted_as_served() -> None:
    """One client returns while the current deal gives all to the other: a new deal gains something."""
    of = Group(100.0, [interactive(1, 50, held=(), starting=1), batch(2, 50, held=(100.0,), dealt=100.0)])
    assert deal(of, Elastic(cost_seconds=0.1))[1] == pytest.approx(50.0)


MEMBERS = st.lists(
    st.tuples(
        st.floats(1.0, 50.0),
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from([INTERACTIVE, BATCH]),
        st.one_of(st.none(), st.floats(0.0, 1.0)),
    ),
    min_size=1,
    max_size=6,
)


@given(MEMBERS, st.floats(0.0, 100.0))
def test_whatever_it_deals_the_sum_stays_within_what_is_reserved(
    made: list[tuple[float, int, int, int, float | None]], cost_seconds: float
) -> None:
    members = [
        GroupMember(number, part, parts, held=(part,) * min(running, parts), level=level, busy=busy)
        for number, (part, parts, running, level, busy) in enumerate(made)
    ]
    of = group(*members)
    shares = deal(of, Elastic(cost_seconds))
    out = sum(shares[member.lease_id] * member.present for member in members)
    assert out <= of.total + 1e-6
    assert all(-1e-9 <= share <= 100.0 + 1e-9 for share in shares.values())


def test_a_saturated_one_gets_its_own_part_back_at_once() -> None:
    """Its use is bounded by its share, so its need is not known: step by step it would take many moves."""
    of = group(interactive(1, 40, 1.0, held=(10.0,), dealt=10.0), batch(2, 60, held=(90.0,), dealt=90.0))
    assert aim(of, SETTINGS)[1] == pytest.approx(60.0)  # its part, and the margin


def test_the_measured_cost_of_a_move_replaces_the_general_one() -> None:
    """A start that takes minutes does not pay; a measured handover of some milliseconds does."""
    slow = Elastic(cost_seconds=600.0)
    still = weigh(group(interactive(1, 50, 0.2), batch(2, 50)), slow)
    assert (still.is_new, still.deal) == (False, {1: 50, 2: 50})
    assert "does not pay" in still.why
    of = group(interactive(1, 50, 0.2, move_seconds=0.008), batch(2, 50, move_seconds=0.008))
    moved = weigh(of, slow)
    assert (moved.is_new, cost(of, moved.deal, slow)) == (True, pytest.approx(0.8))


@pytest.mark.parametrize(("busy", "is_new"), [(0.60, False), (0.62, False), (0.70, False), (0.78, True), (0.5, True)])
def test_small_changes_move_nothing(busy: float, is_new: bool) -> None:
    """However cheap a move is: it starts a process, and the measure fluctuates."""
    settings = Elastic(cost_seconds=0.0, least_move=5.0)
    of = group(interactive(1, 33, busy), batch(2, 33), batch(3, 33))
    found = weigh(of, settings)
    assert found.is_new is is_new
    if not is_new:
        assert found.why == "no share would change by 5 % or more"
