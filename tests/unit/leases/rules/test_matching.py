"""Which lease is a client's."""

import tracemalloc
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.leases.rules.matching import LeaseIndex, is_among, place_of, places_of, why
from mpsd.model.lease import Identity, Lease, LeaseSpec, LeaseState, Selector, SelectorKind
from mpsd.model.process import ProcessId

ALICE, BOB, ROOT = 1000, 1001, 0
TOKEN = "0123456789abcdef"
CONTAINER = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
SCOPE = f"/system.slice/docker-{CONTAINER}.scope"

PID = Selector(SelectorKind.PID, "42", 7)
BY_TOKEN = Selector(SelectorKind.TOKEN, TOKEN)
SLICE = Selector(SelectorKind.CGROUP, "/system.slice")
DEEP = Selector(SelectorKind.CGROUP, SCOPE)
BY_NAME = Selector(SelectorKind.CGROUP, CONTAINER[:12])
USER = Selector(SelectorKind.UID, str(ALICE))

CLIENT = Identity(ProcessId(42, 7), ALICE, cgroups=(f"{SCOPE}/inner",), token=TOKEN)


def lease(number: int, selector: Selector, owner: int = ROOT) -> Lease:
    spec = LeaseSpec("a lease", selector)
    return Lease(number, owner, spec, LeaseState.ACTIVE, 0.0, None, for_all_users=owner == ROOT)


def index_of(*leases: Lease) -> LeaseIndex:
    index = LeaseIndex()
    for each in leases:
        index.put(each)
    return index


def match(identity: Identity, leases: list[Lease]) -> Lease | None:
    return index_of(*leases).match(identity)


PRECISION = [PID, BY_TOKEN, DEEP, SLICE, USER]  # the most precise first


@pytest.mark.parametrize("number", range(len(PRECISION)))
def test_the_most_precise_lease_wins(number: int) -> None:
    """With any other leases, older and newer."""
    rest = PRECISION[number:]
    for ordered in (rest, rest[::-1]):
        leases = [lease(place, selector) for place, selector in enumerate(ordered, 1)]
        found = match(CLIENT, leases)
        assert found is not None
        assert found.spec.selector == PRECISION[number]


@pytest.mark.parametrize("selector", [*PRECISION, BY_NAME])
def test_of_two_equally_precise_the_newer_wins(selector: Selector) -> None:
    assert match(CLIENT, [lease(1, selector), lease(2, selector)]) == lease(2, selector)


def test_a_name_is_as_precise_as_the_path_it_stands_for() -> None:
    assert match(CLIENT, [lease(1, DEEP), lease(2, BY_NAME)]) == lease(2, BY_NAME)
    assert match(CLIENT, [lease(1, BY_NAME), lease(2, DEEP)]) == lease(2, DEEP)


STRANGERS = [
    pytest.param(Selector(SelectorKind.PID, "42", 8), id="a later process with its pid"),
    pytest.param(Selector(SelectorKind.PID, "43", 7), id="another process"),
    pytest.param(Selector(SelectorKind.TOKEN, TOKEN[:-1] + "0"), id="another token"),
    pytest.param(Selector(SelectorKind.TOKEN, TOKEN + "0"), id="a longer token"),
    pytest.param(Selector(SelectorKind.CGROUP, "/system"), id="the beginning of a name"),
    pytest.param(Selector(SelectorKind.CGROUP, f"{SCOPE}/inner/most"), id="a cgroup below"),
    pytest.param(Selector(SelectorKind.CGROUP, "system.slice/inner"), id="no name of a part"),
    pytest.param(Selector(SelectorKind.CGROUP, CONTAINER[:13]), id="neither the short nor the whole id"),
    pytest.param(Selector(SelectorKind.UID, str(BOB)), id="another user"),
]


@pytest.mark.parametrize("selector", STRANGERS)
def test_what_names_somebody_else_is_not_its_lease(selector: Selector) -> None:
    assert match(CLIENT, [lease(1, selector)]) is None


@pytest.mark.parametrize("selector", [*PRECISION, BY_NAME])
def test_a_users_lease_serves_that_user_alone(selector: Selector) -> None:
    """A user can neither pull another user's client into a lease, nor use another user's token."""
    assert match(CLIENT, [lease(1, selector, owner=BOB)]) is None
    assert match(CLIENT, [lease(1, selector, owner=ALICE)]) is not None


def test_anothers_newer_lease_hides_nothing() -> None:
    assert match(CLIENT, [lease(1, DEEP, owner=ALICE), lease(2, DEEP, owner=BOB)]) == lease(1, DEEP, owner=ALICE)


def test_a_path_through_a_slice_within_a_name_is_found() -> None:
    """Of SLICE:RUNTIME:ID, as k3s names a container, the slice counted as a directory: a lease by its path found no client."""
    top = f"/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice:cri-containerd:{CONTAINER}"
    client = Identity(ProcessId(42, 7), ALICE, cgroups=(f"{top}/inner",))
    for path in (top, f"{top}/inner"):
        assert match(client, [lease(1, Selector(SelectorKind.CGROUP, path))])
    assert not match(client, [lease(1, Selector(SelectorKind.CGROUP, top.partition(":")[0]))])
    assert match(client, [lease(1, Selector(SelectorKind.CGROUP, top.partition(":")[0].removeprefix("/")))])


def test_a_name_given_by_the_user_serves_no_operators_lease() -> None:
    """Anybody can call a cgroup of his own service manager like another's container."""
    inside = f"/user.slice/user-{ALICE}.slice/user@{ALICE}.service/docker-{CONTAINER}.scope"
    forger = Identity(ProcessId(1, 1), ALICE, cgroups=(inside,))
    assert match(forger, [lease(1, BY_NAME)]) is None
    assert match(forger, [lease(1, BY_NAME, owner=ALICE)]) is not None
    assert match(forger, [lease(1, Selector(SelectorKind.CGROUP, inside))]) is not None


def test_a_process_that_cannot_be_seen_has_no_lease() -> None:
    """mpsd would not notice its end, and its part would never be free again."""
    assert match(Identity(None, ALICE, token=TOKEN), [lease(1, USER), lease(2, BY_TOKEN)]) is None


def test_why_says_neither_the_name_nor_the_token() -> None:
    for selector in (*PRECISION, BY_NAME):
        words = why(lease(3, selector))
        assert "lease 3" in words
        assert "a lease" not in words
        assert TOKEN not in words
    assert TOKEN not in repr(lease(1, BY_TOKEN))
    assert TOKEN not in repr(CLIENT)


def test_a_lease_that_was_taken_out_is_not_found() -> None:
    index = index_of(lease(1, USER), lease(2, USER), lease(3, PID))
    index.take(lease(3, PID))
    index.take(lease(2, USER))
    index.take(lease(2, USER))  # again: nothing
    assert index.match(CLIENT) == lease(1, USER)
    index.take(lease(1, USER))
    assert not index._places


SELECTORS = st.one_of(
    st.builds(Selector, st.just(SelectorKind.PID), st.sampled_from(["42", "43"]), st.sampled_from([7, 8])),
    st.builds(Selector, st.just(SelectorKind.TOKEN), st.sampled_from([TOKEN, TOKEN[::-1]])),
    st.builds(
        Selector,
        st.just(SelectorKind.CGROUP),
        st.sampled_from(["/system.slice", SCOPE, f"{SCOPE}/inner", CONTAINER, "inner", "/else", "else"]),
    ),
    st.builds(Selector, st.just(SelectorKind.UID), st.sampled_from([str(ALICE), str(BOB)])),
)


def precision(selector: Selector) -> tuple[int, int]:
    """Look up the precision in the table of the page."""
    depth = {"/system.slice": 1, SCOPE: 2, CONTAINER: 2, f"{SCOPE}/inner": 3, "inner": 3}
    return list(SelectorKind).index(selector.kind), -depth.get(selector.value, 0)


def is_for(selector: Selector, owner: int) -> bool:
    if owner not in (ROOT, ALICE) or (selector.value == "inner" and owner == ROOT):  # a name from inside the container
        return False
    return selector in (PID, BY_TOKEN, USER) or selector.value in ("/system.slice", SCOPE, f"{SCOPE}/inner", CONTAINER, "inner")


@given(st.lists(st.tuples(SELECTORS, st.sampled_from([ROOT, ALICE, BOB]), st.booleans()), max_size=12))
def test_the_index_agrees_with_the_table(made: list[tuple[Selector, int, bool]]) -> None:
    """Leases come and go, and the one found is always the one that the table of precision names."""
    index, here, numbers = LeaseIndex(), {}, count(1)
    for selector, owner, stays in made:
        one = lease(next(numbers), selector, owner)
        index.put(one)
        here[one.id] = one
        if not stays:
            index.take(one)
            del here[one.id]
    good = [one for one in here.values() if is_for(one.spec.selector, one.owner_uid)]
    expected = min(good, key=lambda one: (precision(one.spec.selector), -one.id), default=None)
    assert index.match(CLIENT) == expected
    assert expected is None or is_among(place_of(expected), places_of(CLIENT))


def test_the_places_of_a_long_path_take_little_memory() -> None:
    """One user's 2,500 waiting clients had 0.4 GB of prefixes: of a path of 64 directories each 167 KB."""
    path = "/user.slice/user-1000.slice/user@1000.service" + "".join(f"/{number:02}{'a' * 61}" for number in range(61))
    identity = Identity(ProcessId(42, 7), ALICE, cgroups=(path,))
    places_of(identity)  # what the first call keeps in caches is not counted
    tracemalloc.start()
    try:
        places = places_of(identity)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert is_among(place_of(lease(1, Selector(SelectorKind.CGROUP, path))), places)
    assert not is_among(place_of(lease(1, Selector(SelectorKind.CGROUP, f"{path}/deeper"))), places)
    assert kept < 20_000
