"""How the shares of a group are dealt, and what a pool of leases and clients takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mpsd.leases.rules.group_shares import Group, GroupMember, at_start, deal_by_presence, in_proportion
from mpsd.leases.rules.sm_pools import Absent, ClientShare, SmPool
from mpsd.model.process import ProcessId


def group(*members: GroupMember, taken: float = 0.0) -> Group:
    return Group(sum(member.part * member.parts for member in members), members, taken)


def dealt(of: Group) -> dict[int, float]:
    return {lease_id: round(share, 6) for lease_id, share in deal_by_presence(of).items()}


DEALS = [
    pytest.param(
        [GroupMember(1, 30, held=(30,)), GroupMember(2, 30, held=(30,)), GroupMember(3, 30, held=(30,))],
        [30, 30, 30],
        id="all there",
    ),
    pytest.param(
        [GroupMember(1, 30), GroupMember(2, 30, starting=1), GroupMember(3, 30, held=(30,))], [30, 45, 45], id="one has gone"
    ),
    pytest.param(
        [GroupMember(1, 30, recent=1), GroupMember(2, 30, starting=1), GroupMember(3, 30, held=(30,))],
        [30, 30, 30],
        id="... just now",
    ),
    pytest.param(
        [GroupMember(1, 60), GroupMember(2, 10, starting=1), GroupMember(3, 20, starting=1)], [60, 30, 60], id="in proportion"
    ),
    pytest.param(
        [GroupMember(1, 10, parts=4, held=(10, 10), starting=1), GroupMember(2, 20)],
        [20, 20],
        id="parts of a lease that has gone",
    ),
    pytest.param(
        [GroupMember(1, 10, parts=4, held=(10, 10)), GroupMember(2, 20, starting=1)], [15, 30], id="a part nobody uses"
    ),
    pytest.param([GroupMember(1, 80, starting=1), GroupMember(2, 80)], [100, 80], id="never more than a GPU"),
    pytest.param(
        [GroupMember(1, 90, starting=1), GroupMember(2, 30, starting=1), GroupMember(3, 80)],
        [100, 100, 80],
        id="the rest goes to the others",
    ),
    pytest.param([GroupMember(1, 30), GroupMember(2, 30)], [30, 30], id="nobody there"),
]


@pytest.mark.parametrize(("members", "expected"), DEALS)
def test_deals(members: list[GroupMember], expected: list[float]) -> None:
    assert dealt(group(*members)) == {number: float(share) for number, share in enumerate(expected, 1)}


STARTS = [
    pytest.param(group(GroupMember(1, 30, starting=1), GroupMember(2, 30, held=(30,))), 30.0, id="its part"),
    pytest.param(group(GroupMember(1, 30, starting=1), GroupMember(2, 30)), 60.0, id="and what is nobody's"),
    pytest.param(group(GroupMember(1, 30, starting=1), GroupMember(2, 30, held=(50,))), 10.0, id="no more than is free"),
    pytest.param(group(GroupMember(1, 30, starting=1), GroupMember(2, 30, held=(59.5,))), None, id="too little is free"),
    pytest.param(
        group(GroupMember(1, 0.5, starting=1), GroupMember(2, 30, held=(30,))), 0.5, id="a small part is enough for itself"
    ),
    pytest.param(group(GroupMember(1, 30, starting=1), GroupMember(2, 30), taken=20.0), 40.0, id="some is out of reach"),
    pytest.param(group(GroupMember(1, 30, starting=1), taken=30.0), None, id="... all"),
]


@pytest.mark.parametrize(("of", "expected"), STARTS)
def test_what_a_client_starts_with(of: Group, expected: float | None) -> None:
    assert at_start(of, 1, deal_by_presence(of)) == expected


MEMBERS = st.lists(
    st.builds(
        lambda part, parts, starting, recent: GroupMember(0, part, parts, starting=starting, recent=recent),
        st.floats(0.1, 60.0),
        st.integers(1, 4),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


@given(MEMBERS)
def test_a_deal_adds_up_to_what_is_reserved(members: list[GroupMember]) -> None:
    """The deal gives out all of it, unless whole GPUs would be exceeded; so the sum stays constant as clients come and go."""
    of = group(*(replace(member, lease_id=number) for number, member in enumerate(members)))
    shares = deal_by_presence(of)
    present = [member for member in of.members if member.present]
    out = sum(shares[member.lease_id] * member.present for member in present)
    room = sum(100.0 * member.present for member in present)
    assert out == pytest.approx(min(of.total, room), rel=1e-9, abs=1e-9)
    assert all(0 <= shares[member.lease_id] <= 100.0 for member in present)


def test_weights_of_zero_get_nothing() -> None:
    assert in_proportion(50.0, [GroupMember(1, 10, starting=1)], {1: 0.0}) == {1: 0.0}


# -- pools -----------------------------------------------------------------------------------------------------------

A, B, C = (ProcessId(pid, 1) for pid in (1, 2, 3))


def a_pool(reserved: dict[int, int], *clients: tuple[ProcessId, ClientShare]) -> SmPool:
    pool = SmPool(("GPU-a",), None)
    for lease_id, amount in reserved.items():
        pool.add_lease(lease_id, amount)
    for process, holding in clients:
        pool.add_client(process, holding)
    return pool


def test_a_reserved_share_counts_once_whether_it_is_held_or_not() -> None:
    pool = a_pool({1: 60}, (A, ClientShare(1, 30, 30)))
    assert (pool.taken(), pool.free()) == (60, 30)


def test_what_a_client_keeps_counts_after_its_lease() -> None:
    pool = a_pool({1: 60}, (A, ClientShare(1, 30, 30)))
    assert pool.end_lease(1) == [A]
    assert pool.taken() == 30
    pool.end_client(A, 0.0)
    assert (pool.taken(), pool.is_empty) == (0, True)


def test_what_was_inherited_is_the_others_loss_and_counts_once() -> None:
    """A lease of 30 of 90 ends while its client holds 45: 60 stay reserved, of which 15 are out of reach."""
    pool = a_pool({1: 30, 2: 30, 3: 30}, (A, ClientShare(1, 45, 30)), (B, ClientShare(2, 45, 30)))
    assert (pool.taken(), pool.free()) == (90, 0)
    pool.end_lease(1)
    assert (pool.taken(), pool.free(), pool.debt) == (90, 0, 15)
    pool.end_client(A, 0.0)
    assert (pool.taken(), pool.free()) == (60, 15)


def test_a_lease_whose_share_others_hold_gives_back_nothing_yet() -> None:
    pool = a_pool({1: 30, 2: 30}, (B, ClientShare(2, 60, 30)))
    pool.end_lease(1)
    assert (pool.taken(), pool.free()) == (60, -30)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.integers(1, 4), st.integers(1, 40)),
        st.tuples(st.just("end lease"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("start"), st.integers(1, 4), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_no_end_makes_a_pool_take_more_and_it_never_takes_less_than_is_used(events: list[tuple[str, int, int]]) -> None:
    pool, pid = a_pool({}), 0
    for what, number, amount in events:
        before = pool.taken()
        if what == "lease" and number not in pool.leases:
            pool.add_lease(number, amount)
            assert pool.taken() <= before + amount
        elif what == "end lease":
            pool.end_lease(number)
            assert pool.taken() <= before
        elif what == "start" and number in pool.leases and not pool.held().get(number) and pool.free() > 0:  # one process each
            pid += 1
            pool.add_client(ProcessId(pid, 1), ClientShare(number, min(amount, pool.free()), pool.leases[number]))
            assert pool.taken() == before
        elif what == "end" and len(pool.clients) > number:
            pool.end_client(list(pool.clients)[number], 0.0)
            assert pool.taken() <= before
        assert pool.taken() >= max(sum(pool.leases.values()), sum(each.share for each in pool.clients.values()))
        assert (pool.taken(), pool.free()) == sums_of(pool)


def sums_of(pool: SmPool) -> tuple[int, int]:
    """Return what is taken and what is free, from all leases and clients (the table in sm_pools.py)."""
    kept = [each for each in pool.clients.values() if each.is_kept]
    reserved = sum(pool.leases.values())
    held = sum(each.share for each in pool.clients.values() if not each.is_kept)
    debt = sum(max(0, each.share - each.part) for each in kept)
    return max(reserved, held + debt) + sum(min(each.share, each.part) for each in kept), reserved - held - debt


def test_parts_are_absent_from_the_time_that_their_process_left() -> None:
    absent = Absent(3, now=10.0)
    absent.take()
    absent.add(20.0)
    assert [absent.after(since) for since in (9.0, 10.0, 19.0, 20.0)] == [3, 1, 1, 0]
    for _ in range(4):
        absent.take()
    assert absent.after(0.0) == 0
