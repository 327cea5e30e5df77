"""Placement is a table: one row a rule of docs/domains.md."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model import DomainState, DomainView
from mpsd.policy.placement import Ask, Create, Join, Rules, Wait, place
from mpsd.policy.spares import SparePlan, plan_spares

GPU = frozenset({"GPU-a"})
OTHER_GPU = frozenset({"GPU-b"})
RULES = Rules(max_domains=3)
READY, FAULT, DEAD, STARTING = DomainState.READY, DomainState.FAULT, DomainState.DEAD, DomainState.STARTING
SILENT = DomainState.SILENT


def view(name, state=READY, clients=0, uid=None, public=True, gpus=GPU, capacity=48, number=None, key=""):
    return DomainView(name, state, gpus, uid, clients, capacity, public, number or int(name[1:]), key)


@pytest.mark.parametrize(
    ("domains", "ask", "expected"),
    [
        pytest.param([view("d1", clients=3, uid=0)], Ask(0, GPU, "own:7"), Create(GPU), id="its own: not with others"),
        pytest.param([view("d1", clients=3, uid=0, key="own:7")], Ask(0, GPU), Create(GPU), id="others: not with it"),
        pytest.param([view("d1"), view("d2", clients=1, uid=0, key="g")], Ask(0, GPU, "g"), Join("d2"), id="with its group"),
        pytest.param([view("d1", key="own:7")], Ask(0, GPU), Join("d1"), id="an empty one is anybody's again"),
        pytest.param([view("d1", clients=9, uid=0), view("d2")], Ask(0, GPU, wish="d2"), Join("d2"), id="as was wished"),
        pytest.param([view("d1"), view("d2", FAULT)], Ask(0, GPU, wish="d2"), Join("d1"), id="a wish that cannot be met"),
        pytest.param([view("d1", DomainState.DRAINING, 2, 0)], Ask(0, GPU), Create(GPU), id="not to one that is emptied"),
    ],
)
def test_domains_of_ones_own_and_wishes(domains, ask, expected):
    assert place(ask, domains, RULES) == expected


TWO_LEFT = [*(view(f"d{n}", clients=1, uid=7, key=f"own:{n}") for n in range(1, 7)), view("d7")]
KEPT = Wait("its user has fault domains, and the others are kept for users who have none", is_own=True)


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "expected"),
    [
        pytest.param(TWO_LEFT, Ask(7, GPU, "own:9"), Rules(8), KEPT, id="who has some"),
        pytest.param(TWO_LEFT[:6], Ask(7, GPU, "own:9"), Rules(8), KEPT, id="nor is one made"),
        pytest.param(TWO_LEFT, Ask(7, GPU, "own:3"), Rules(8), Join("d3"), id="in one's own there is room"),
        pytest.param(TWO_LEFT, Ask(9, GPU), Rules(8), Join("d7"), id="for users who have none"),
        pytest.param(TWO_LEFT[:6], Ask(9, GPU), Rules(8), Create(GPU), id="or a new one"),
        pytest.param(TWO_LEFT, Ask(7, GPU, "own:9"), Rules(8, operators=frozenset({7})), Join("d7"), id="operators may"),
        pytest.param(TWO_LEFT[1:], Ask(7, GPU, "own:9"), Rules(8), Join("d7"), id="while three are left"),
    ],
)
def test_the_last_quarter_is_for_users_who_have_none(domains, ask, rules, expected):
    assert place(ask, domains, rules) == expected


def closed(state, **facts):
    """Six domains of user 7, all in this state."""
    return [replace(each, state=state, **facts) for each in TWO_LEFT[:6]]


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "is_own"),
    [
        pytest.param(closed(DomainState.DRAINING), Ask(7, GPU), Rules(8), False, id="drained by an operator, or by mpsd"),
        pytest.param(closed(DEAD), Ask(7, GPU), Rules(8), False, id="vendor daemons died"),
        pytest.param([*closed(DEAD)[1:], TWO_LEFT[0]], Ask(7, GPU), Rules(8), True, id="one holds clients of another key"),
        pytest.param(closed(FAULT), Ask(7, GPU), Rules(8), True, id="its clients faulted"),
        pytest.param(closed(SILENT), Ask(7, GPU), Rules(8), True, id="it may have stopped its servers"),
        pytest.param(closed(DomainState.DRAINING, is_worn=True), Ask(7, GPU), Rules(8), True, id="its clients ended early"),
        pytest.param([view("d1", clients=1, uid=8)], Ask(7, GPU), Rules(1), False, id="taken by another user"),
        pytest.param([view("d1", clients=48, uid=7)], Ask(7, GPU), Rules(1), True, id="filled by its own clients"),
        pytest.param([view("d1", clients=1)], Ask(7, GPU, "own:1"), Rules(1, is_exclusive=True), True, id="it wants one alone"),
        pytest.param([view("d1", STARTING)], Ask(7, GPU), Rules(1), False, id="it starts"),
    ],
)
def test_whether_a_wait_is_the_askers_own_doing(domains, ask, rules, is_own):
    """Health names a wait that is not: else a user could make mpsd look ill for as long as it likes."""
    wait = place(ask, domains, rules)
    assert isinstance(wait, Wait)
    assert wait.is_own == is_own


APART = Ask(0, GPU, avoid=frozenset({"d1"}))
BUSY, IDLE = view("d1", clients=3, uid=0), view("d2", public=False)


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "expected"),
    [
        pytest.param([BUSY, IDLE], APART, RULES, Join("d2"), id="where none of its service is"),
        pytest.param([BUSY, IDLE], Ask(0, GPU, wish="d1", avoid=APART.avoid), RULES, Join("d2"), id="whatever was wished"),
        pytest.param([view("d1")], APART, RULES, Create(GPU), id="a new one rather than that"),
        pytest.param([BUSY, view("d2", STARTING)], APART, RULES, Wait("its fault domain is starting"), id="it waits for one"),
        pytest.param([BUSY, view("d2", FAULT, 1, 0)], APART, Rules(2), Join("d1"), id="else where they are"),
        pytest.param([BUSY], APART, Rules(8, is_exclusive=True), Join("d1"), id="where one is all there can be"),
    ],
)
def test_members_of_a_service_are_kept_apart(domains, ask, rules, expected):
    assert place(ask, domains, rules) == expected


@pytest.mark.parametrize(
    ("domains", "uid", "rules", "expected"),
    [
        pytest.param([], 0, RULES, Create(GPU), id="none yet: create"),
        pytest.param([view("d1")], 0, RULES, Join("d1"), id="an empty one takes anybody"),
        pytest.param([view("d1", clients=3, uid=0)], 0, RULES, Join("d1"), id="the same user joins its server"),
        pytest.param([view("d1", clients=3, uid=7)], 0, RULES, Create(GPU), id="another user gets a domain of its own"),
        pytest.param([view("d1", uid=7)], 0, RULES, Join("d1"), id="an idle server of another user is replaced"),
        pytest.param([view("d1", clients=3, uid=7)], 0, Rules(3, is_multiuser=True), Join("d1"), id="multiuser: all"),
        pytest.param([view("d1", clients=1, uid=0), view("d2", clients=5, uid=0)], 0, RULES, Join("d2"), id="fullest first"),
        pytest.param([view("d1", public=False), view("d2")], 0, RULES, Join("d2"), id="a spare is used last"),
        pytest.param([view("d2"), view("d1")], 0, RULES, Join("d1"), id="the oldest of equals"),
        pytest.param([view("d1", clients=48, uid=0), view("d2")], 0, RULES, Join("d2"), id="the 49th goes to the next"),
        pytest.param([view("d1", FAULT, clients=2, uid=0), view("d2", public=False)], 0, RULES, Join("d2"), id="not to FAULT"),
        pytest.param([view("d1", FAULT, clients=2, uid=0)], 0, RULES, Create(GPU), id="FAULT and no spare: create"),
        pytest.param([view("d1", gpus=OTHER_GPU)], 0, RULES, Create(GPU), id="a domain of another GPU does not count"),
        pytest.param([view("d1", STARTING)], 0, RULES, Wait("its fault domain is starting"), id="wait for one that starts"),
        pytest.param([view("d1", DEAD)], 0, RULES, Create(GPU), id="a dead one pauses: a new one is quicker"),
        pytest.param([view("d1", SILENT, 1, 0)], 0, RULES, Create(GPU), id="not to a daemon that does not answer"),
        pytest.param(
            [view("d1", DEAD), view("d2", DEAD)],
            0,
            RULES,
            Wait("no further fault domain starts: d1 dead 0/48 uid None, d2 dead 0/48 uid None"),
            id="where two do not start a third does not either",
        ),
    ],
)
def test_placement(domains, uid, rules, expected):
    assert place(Ask(uid, GPU), domains, rules) == expected


def test_at_the_bound_a_client_waits_and_is_told_for_what():
    taken = [view(f"d{n}", clients=48, uid=0) for n in (1, 2, 3)]
    decision = place(Ask(0, GPU), taken, RULES)
    assert isinstance(decision, Wait)
    assert "3 domains are taken" in decision.reason


@pytest.mark.parametrize("state", [READY, FAULT])
def test_in_exclusive_mode_there_is_one_domain(state):
    """A second MPS server could not have a context on the GPU."""
    domains = [view("d1", state, clients=3, uid=7)]
    decision = place(Ask(0, GPU), domains, Rules(3, is_exclusive=True))
    assert decision == Join("d1") if state is READY else isinstance(decision, Wait)


VIEWS = st.builds(
    DomainView,
    name=st.sampled_from([f"d{n}" for n in range(1, 9)]),
    state=st.sampled_from(DomainState),
    gpus=st.sampled_from([GPU, OTHER_GPU]),
    uid=st.none() | st.integers(0, 3),
    clients=st.integers(0, 60),
    capacity=st.just(48),
    is_public=st.booleans(),
    number=st.integers(1, 9),
)


@given(st.lists(VIEWS, unique_by=lambda d: d.name, max_size=8), st.integers(0, 3), st.booleans(), st.booleans())
def test_nobody_is_placed_where_it_cannot_be_served(domains, uid, multiuser, exclusive):
    decision = place(Ask(uid, GPU), domains, Rules(4, multiuser, exclusive))
    if isinstance(decision, Join):
        chosen = next(d for d in domains if d.name == decision.domain)
        assert chosen.state is READY
        assert chosen.clients < chosen.capacity
        assert chosen.gpus == GPU
        assert multiuser or exclusive or chosen.uid in (None, uid) or chosen.clients == 0


@pytest.mark.parametrize(
    ("domains", "idle", "expected"),
    [
        pytest.param([view("d1")], (), SparePlan(), id="no client yet: no spare"),
        pytest.param([view("d1", clients=1, uid=0)], (), SparePlan(create=1), id="the first client makes one necessary"),
        pytest.param([view("d1", clients=1), view("d2", public=False)], (), SparePlan(warm=("d2",)), id="it is started"),
        pytest.param([view("d1", clients=1), view("d2", uid=0, public=False)], (), SparePlan(), id="warm: nothing to do"),
        pytest.param([view("d1", clients=1), view("d2", STARTING)], (), SparePlan(), id="one is coming"),
        pytest.param([view("d1", FAULT, 1), view("d2", clients=1, uid=0)], (), SparePlan(create=1), id="FAULT is no spare"),
        pytest.param(
            [view("d1", clients=1), view("d2", uid=0), view("d3", uid=0)], ("d3",), SparePlan(retire=("d3",)), id="surplus"
        ),
        pytest.param([view("d1", clients=1), view("d2", uid=0), view("d3", uid=0)], (), SparePlan(), id="not yet idle"),
        pytest.param([view("d1"), view("d2", uid=0)], ("d1", "d2"), SparePlan(retire=("d2",)), id="all idle: the first stays"),
        pytest.param([view(f"d{n}", FAULT, 1) for n in (1, 2, 3)], (), SparePlan(), id="the bound holds for spares too"),
    ],
)
def test_spares(domains, idle, expected):
    assert plan_spares(domains, frozenset(idle), 1, RULES) == expected


@pytest.mark.parametrize(("dead", "wanted", "created"), [(0, 1, 1), (1, 1, 1), (2, 1, 0), (2, 2, 2), (3, 2, 0), (1, 0, 0)])
def test_where_none_can_start_spares_do_not_take_all_domains(dead, wanted, created):
    """As on a full disk: each that dies would make another one necessary."""
    domains = [view("d1", clients=1, uid=0), *(view(f"d{n}", DEAD) for n in range(2, 2 + dead))]
    assert plan_spares(domains, frozenset(), wanted, Rules(8)) == SparePlan(create=created)


def test_no_spare_in_exclusive_mode():
    assert plan_spares([view("d1", clients=1, uid=0)], frozenset(), 1, Rules(3, is_exclusive=True)) == SparePlan()
