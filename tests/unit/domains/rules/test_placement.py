"""Placement is a table: one row a rule of docs/domains.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mpsd.domains.rules.placement import Create, Join, PlacementRequest, Rules, Wait, place
from mpsd.domains.rules.spares import SparePlan, plan_spares
from mpsd.fairness.uid_ranges import parse
from mpsd.model.domain import DomainState, DomainView

GPU = frozenset({"GPU-a"})
OTHER_GPU = frozenset({"GPU-b"})
RULES = Rules(max_domains=3)
READY, FAULT, DEAD, STARTING = DomainState.READY, DomainState.FAULT, DomainState.DEAD, DomainState.STARTING
SILENT, STOPPING = DomainState.SILENT, DomainState.STOPPING


def view(name, state=READY, clients=0, uid=None, public=True, gpus=GPU, capacity=48, number=None, key="", users=()):
    number = number or int(name[1:])
    return DomainView(name, state, gpus, uid, clients, capacity, public, number, key, users=frozenset(users))


@pytest.mark.parametrize(
    ("domains", "ask", "expected"),
    [
        pytest.param(
            [view("d1", clients=3, uid=0)], PlacementRequest(0, GPU, "own:7"), Create(GPU), id="its own: not with others"
        ),
        pytest.param(
            [view("d1", clients=3, uid=0, key="own:7")], PlacementRequest(0, GPU), Create(GPU), id="others: not with it"
        ),
        pytest.param(
            [view("d1"), view("d2", clients=1, uid=0, key="g")], PlacementRequest(0, GPU, "g"), Join("d2"), id="with its group"
        ),
        pytest.param([view("d1", key="own:7")], PlacementRequest(0, GPU), Join("d1"), id="an empty one is anybody's again"),
        pytest.param(
            [view("d1", clients=9, uid=0), view("d2")], PlacementRequest(0, GPU, wish="d2"), Join("d2"), id="as was wished"
        ),
        pytest.param(
            [view("d1"), view("d2", FAULT)], PlacementRequest(0, GPU, wish="d2"), Join("d1"), id="a wish that cannot be met"
        ),
        pytest.param(
            [view("d1", DomainState.DRAINING, 2, 0)], PlacementRequest(0, GPU), Create(GPU), id="not to one that is emptied"
        ),
    ],
)
def test_domains_of_ones_own_and_wishes(domains, ask, expected):
    assert place(ask, domains, RULES) == expected


TWO_LEFT = [*(view(f"d{n}", clients=1, uid=7, key=f"own:{n}") for n in range(1, 7)), view("d7")]
KEPT = Wait("its user has fault domains, and the remaining ones are kept for users without any", is_own=True)


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "expected"),
    [
        pytest.param(TWO_LEFT, PlacementRequest(7, GPU, "own:9"), Rules(8), KEPT, id="who has some"),
        pytest.param(TWO_LEFT[:6], PlacementRequest(7, GPU, "own:9"), Rules(8), KEPT, id="nor is one made"),
        pytest.param(TWO_LEFT, PlacementRequest(7, GPU, "own:3"), Rules(8), Join("d3"), id="in one's own there is room"),
        pytest.param(TWO_LEFT, PlacementRequest(9, GPU), Rules(8), Join("d7"), id="for users who have none"),
        pytest.param(TWO_LEFT[:6], PlacementRequest(9, GPU), Rules(8), Create(GPU), id="or a new one"),
        pytest.param(
            TWO_LEFT, PlacementRequest(7, GPU, "own:9"), Rules(8, operators=frozenset({7})), Join("d7"), id="operators may"
        ),
        pytest.param(TWO_LEFT[1:], PlacementRequest(7, GPU, "own:9"), Rules(8), Join("d7"), id="while three are left"),
    ],
)
def test_the_last_quarter_is_for_users_who_have_none(domains, ask, rules, expected):
    assert place(ask, domains, rules) == expected


EVE, RANGES = 100_000, parse("eve:100000:65536\n")
OF_ONE_RANGE = [view(f"d{n}", clients=1, uid=EVE + n) for n in range(1, 7)]


def test_the_uids_of_one_range_are_one_user():
    """Eve acts as any of 65,536 users, and took all domains."""
    rules = Rules(8, ranges=RANGES)
    assert place(PlacementRequest(EVE + 7, GPU), OF_ONE_RANGE, rules) == KEPT
    assert place(PlacementRequest(EVE + 6, GPU), OF_ONE_RANGE, rules) == Join("d6")
    assert place(PlacementRequest(1000, GPU), OF_ONE_RANGE, rules) == Create(GPU)


SHARED = [view(f"d{n}", clients=48, uid=9, users=(7, 9)) for n in range(1, 7)]
SEVENTH, EIGHTH = (view(f"d{n}", clients=3, uid=1, users=(1,)) for n in (7, 8))
MULTIUSER = Rules(8, is_multiuser=True)


@pytest.mark.parametrize(
    ("domains", "uid", "rules", "expected"),
    [
        pytest.param(SHARED, 7, MULTIUSER, KEPT, id="who has clients in some"),
        pytest.param(SHARED, 1, MULTIUSER, Create(GPU), id="who has none"),
        pytest.param([*SHARED, SEVENTH], 7, MULTIUSER, KEPT, id="nor with others"),
        pytest.param([*SHARED, SEVENTH], 2, MULTIUSER, Join("d7"), id="with others, who has none"),
        pytest.param([*SHARED, view("d7", clients=3, uid=1, users=(1, 7))], 7, MULTIUSER, Join("d7"), id="where it is"),
        pytest.param([*SHARED, SEVENTH, EIGHTH], 7, MULTIUSER, KEPT, id="when all are taken"),
        pytest.param([view("d1", clients=3, uid=9, users=(9,))], 7, MULTIUSER, Join("d1"), id="until then with others"),
        pytest.param(SHARED, 7, replace(MULTIUSER, operators=frozenset({7})), Create(GPU), id="operators may"),
    ],
)
def test_where_one_server_serves_all_users_each_has_a_share_too(domains, uid, rules, expected):
    """One user's clients filled all domains, or took them by keys of their own."""
    assert place(PlacementRequest(uid, GPU), domains, rules) == expected


def closed(number, users, state=SILENT, by=None):
    return replace(view(f"d{number}", state, clients=2, uid=0, users=users), blocked_uid=by)


EVES = [closed(n, (666,), by=666) for n in range(2, 7)]
FAULTED = [closed(n, (666, n), FAULT) for n in range(2, 7)]


@pytest.mark.parametrize(
    ("domains", "uid", "expected"),
    [
        pytest.param([closed(1, (7, 666), by=666), *EVES], 7, Create(GPU), id="another user's stopped client"),
        pytest.param([closed(1, (7, 666), by=666), *EVES], 666, KEPT, id="its own"),
        pytest.param([closed(1, (7, 666), by=7), *EVES], 7, KEPT, id="its own, beside another's client"),
        pytest.param([closed(1, (7, 666), FAULT), *FAULTED], 7, Create(GPU), id="not known: in one of these"),
        pytest.param([closed(1, (7, 666), FAULT), *FAULTED], 666, KEPT, id="not known: in several of these"),
        pytest.param([closed(1, (7,), FAULT), *FAULTED], 7, KEPT, id="not known: alone there"),
        pytest.param([view("d1", clients=2, users=(7, 8)), *EVES], 7, Join("d1"), id="one that is well counts"),
    ],
)
def test_a_domain_that_another_user_closed_counts_against_no_other_share(domains, uid, expected):
    """One user silenced three quarters of the domains; each other user with a client in one of them could start no other."""
    assert place(PlacementRequest(uid, GPU), domains, MULTIUSER) == expected


A, B, C = "GPU-a", "GPU-b", "GPU-c"


def on(*gpus):
    return frozenset(gpus)


def domains_of(*sets, clients=1, state=READY, first=2):
    return [view(f"d{n}", state, clients, n, gpus=gpus) for n, gpus in enumerate(sets, first)]


FULL = domains_of(on(A), on(A, B), on(A, C))


@pytest.mark.parametrize(
    ("domains", "gpus", "expected"),
    [
        pytest.param(FULL[:2], on(A, B, C), Create(on(A, B, C)), id="one more on GPU-a"),
        pytest.param(FULL, on(B), Create(on(B)), id="GPU-b has room"),
        pytest.param(FULL, on(B, C), Create(on(B, C)), id="both have"),
        pytest.param([view("d1", clients=1, uid=0, gpus=on(A, B, C)), *FULL[1:]], on(A), Create(on(A)), id="beside the first"),
        pytest.param(
            [*FULL[1:], view("d7", gpus=on(A))], on(A, B, C), Create(on(A, B, C), ("d7",)), id="in place of a spare"
        ),
        pytest.param(
            [*domains_of(on(A), on(A), on(B), on(B)), view("d7", gpus=on(A, C)), view("d8", gpus=on(B, C))],
            on(A, B),
            Create(on(A, B), ("d7", "d8")),
            id="in place of one on each",
        ),
        pytest.param(
            [*domains_of(on(A), on(A), on(B), on(B)), view("d7", gpus=on(A, B, C))],
            on(A, B),
            Create(on(A, B), ("d7",)),
            id="one on both is enough",
        ),
        pytest.param([*FULL[1:], *domains_of(on(A), state=STOPPING)], on(A, B, C), Create(on(A, B, C)), id="one ends"),
        pytest.param(
            [*FULL, *domains_of(on(A), clients=0, state=DomainState.DRAINING, first=6)],
            on(A, B, C),
            Wait("all 4 domains of GPU-a are taken: d2 ready 1/48 uid 2, d3 ready 1/48 uid 3, d4 ready 1/48 uid 4, "
                 "d6 draining 0/48 uid 6"),
            id="it has its successor",
        ),
        pytest.param(
            FULL,
            on(A, B, C),
            Wait("all 3 domains of GPU-a are taken: d2 ready 1/48 uid 2, d3 ready 1/48 uid 3, d4 ready 1/48 uid 4"),
            id="none is left",
        ),
    ],
)  # fmt: skip
def test_the_bound_is_of_each_gpu_whatever_else_its_domains_use(domains, gpus, expected):
    """The bound was for each set of GPUs: 8 GPUs have 255 sets."""
    assert place(PlacementRequest(99, gpus), domains, RULES) == expected


def test_a_share_is_of_each_gpu_too():
    mine = [view(f"d{n}", clients=1, uid=7, gpus=gpus) for n, gpus in enumerate((on(A), on(A, B), on(A, C)), 2)]
    assert place(PlacementRequest(7, on(A, B, C)), mine, Rules(4)) == KEPT
    assert place(PlacementRequest(8, on(A, B, C)), mine, Rules(4)) == Create(on(A, B, C))
    assert place(PlacementRequest(7, on(B)), mine, Rules(4)) == Create(on(B))


SETS = st.sampled_from([on(A), on(B), on(A, B), on(A, C), on(A, B, C)])


@given(st.lists(st.tuples(SETS, st.integers(1, 4), st.booleans()), max_size=60))
def test_however_clients_ask_no_gpu_has_more_domains_than_the_bound(asks):
    """Each gets a domain of its own while the GPU has room; some end at once and leave an empty one. One more may be ending."""
    domains, number, rules = [view("d1", gpus=on(A, B, C))], 1, Rules(3)
    for gpus, uid, ends in asks:
        decision = place(PlacementRequest(uid, gpus, key=f"own:{number}"), domains, rules)
        spares = plan_spares(gpus, domains, frozenset(), 1, rules)
        made = [decision.gpus] if isinstance(decision, Create) else [gpus] * spares.create
        gone = decision.instead if isinstance(decision, Create) else ()
        domains = [replace(d, state=STOPPING) if d.name in gone else d for d in domains]
        for each in made:
            number += 1
            domains.append(view(f"d{number}", clients=0 if ends else 1, uid=uid, gpus=each, key=f"own:{number}"))
        for gpu in (A, B, C):
            using = [d for d in domains if gpu in d.gpus and d.number > 1]
            assert sum(d.state is READY for d in using) <= 3
            assert len(using) <= 4
        domains = [d for d in domains if d.state is READY]


def closed(state, **facts):
    """Return six domains of user 7, all in this state."""
    return [replace(each, state=state, **facts) for each in TWO_LEFT[:6]]


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "is_own"),
    [
        pytest.param(
            closed(DomainState.DRAINING), PlacementRequest(7, GPU), Rules(8), False, id="drained by an operator, or by mpsd"
        ),
        pytest.param(closed(DEAD), PlacementRequest(7, GPU), Rules(8), False, id="vendor daemons died"),
        pytest.param(
            [*closed(DEAD)[1:], TWO_LEFT[0]], PlacementRequest(7, GPU), Rules(8), True, id="one holds clients of another key"
        ),
        pytest.param(closed(FAULT), PlacementRequest(7, GPU), Rules(8), True, id="its clients faulted"),
        pytest.param(closed(DomainState.CONTAINED), PlacementRequest(7, GPU), Rules(8), True, id="its clients' exceptions"),
        pytest.param(closed(SILENT), PlacementRequest(7, GPU), Rules(8), True, id="it may have stopped its servers"),
        pytest.param(
            closed(DomainState.DRAINING, is_worn=True), PlacementRequest(7, GPU), Rules(8), True, id="its clients ended early"
        ),
        pytest.param([view("d1", clients=1, uid=8)], PlacementRequest(7, GPU), Rules(1), False, id="taken by another user"),
        pytest.param([view("d1", clients=48, uid=7)], PlacementRequest(7, GPU), Rules(1), True, id="filled by its own clients"),
        pytest.param(
            [view("d1", clients=1)],
            PlacementRequest(7, GPU, "own:1"),
            Rules(1, is_exclusive=True),
            True,
            id="it wants one alone",
        ),
        pytest.param([view("d1", STARTING)], PlacementRequest(7, GPU), Rules(1), False, id="it starts"),
    ],
)
def test_whether_a_wait_is_the_askers_own_doing(domains, ask, rules, is_own):
    """Health names a wait that is not: else a user could make mpsd look ill for as long as it likes."""
    wait = place(ask, domains, rules)
    assert isinstance(wait, Wait)
    assert wait.is_own == is_own


APART = PlacementRequest(0, GPU, avoid=frozenset({"d1"}))
BUSY, IDLE = view("d1", clients=3, uid=0), view("d2", public=False)


@pytest.mark.parametrize(
    ("domains", "ask", "rules", "expected"),
    [
        pytest.param([BUSY, IDLE], APART, RULES, Join("d2"), id="where none of its service is"),
        pytest.param(
            [BUSY, IDLE], PlacementRequest(0, GPU, wish="d1", avoid=APART.avoid), RULES, Join("d2"), id="whatever was wished"
        ),
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
    assert place(PlacementRequest(uid, GPU), domains, rules) == expected


def test_at_the_bound_a_client_waits_and_is_told_for_what():
    taken = [view(f"d{n}", clients=48, uid=0) for n in (1, 2, 3)]
    decision = place(PlacementRequest(0, GPU), taken, RULES)
    assert isinstance(decision, Wait)
    assert "3 domains are taken" in decision.reason


@pytest.mark.parametrize("state", [READY, FAULT])
def test_in_exclusive_mode_there_is_one_domain(state):
    """A second MPS server could not have a context on the GPU."""
    domains = [view("d1", state, clients=3, uid=7)]
    decision = place(PlacementRequest(0, GPU), domains, Rules(3, is_exclusive=True))
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
    decision = place(PlacementRequest(uid, GPU), domains, Rules(4, multiuser, exclusive))
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
    assert plan_spares(GPU, domains, frozenset(idle), 1, RULES) == expected


@pytest.mark.parametrize(("dead", "wanted", "created"), [(0, 1, 1), (1, 1, 1), (2, 1, 0), (2, 2, 2), (3, 2, 0), (1, 0, 0)])
def test_where_none_can_start_spares_do_not_take_all_domains(dead, wanted, created):
    """As on a full disk: each that dies would make another one necessary."""
    domains = [view("d1", clients=1, uid=0), *(view(f"d{n}", DEAD) for n in range(2, 2 + dead))]
    assert plan_spares(GPU, domains, frozenset(), wanted, Rules(8)) == SparePlan(create=created)


def test_no_spare_in_exclusive_mode():
    assert plan_spares(GPU, [view("d1", clients=1, uid=0)], frozenset(), 1, Rules(3, is_exclusive=True)) == SparePlan()
