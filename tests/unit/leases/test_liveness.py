"""No waiting client is forgotten: once all have room, all are admitted."""

import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import NoRoom
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.lease import LeaseState
from tests.unit.leases.world import ALICE, BOB, ROOT, Arrival, World, by_uid, spec

UIDS = st.sampled_from([ROOT, ALICE, BOB])
ASKED = st.tuples(UIDS, st.sampled_from([20.0, 60.0]), st.integers(1, 2), st.sampled_from(["", "g"]))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), UIDS),
        st.tuples(st.just("arrive"), UIDS),
        st.tuples(st.just("give up"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(
            st.just("lease"), st.tuples(UIDS, st.sampled_from([20.0, 60.0]), st.integers(1, 2), st.sampled_from(["", "g"]))
        ),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("sleep"), st.sampled_from([1, 30, 200])),
    ),
    max_size=25,
)
SETTINGS = st.builds(
    AdmissionSettings,
    default=st.sampled_from(["share", "refuse"]),
    redistribute=st.sampled_from(["off", "group"]),
    max_clients=st.sampled_from([2, 9, 100]),
    user_clients=st.sampled_from([None, 1]),
    max_queue=st.sampled_from([2, 100]),
    inherit_seconds=st.just(10.0),
)


@example(AdmissionSettings(max_clients=2, max_queue=2), [("arrive", ROOT)] * 7)  # the last was let up, and forgotten
@settings(max_examples=60)
@given(SETTINGS, EVENTS)
def test_all_are_let_in_once_there_is_room(terms: AdmissionSettings, events: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(prefix="mpsd-") as directory:
        trio.run(play, Path(directory), terms, events, clock=MockClock(autojump_threshold=0))


async def play(path: Path, terms: AdmissionSettings, events: list[tuple[str, Any]]) -> None:
    world, arrivals = World(path, terms), []
    async with world.running() as nursery:
        for what, value in events:
            await do(world, nursery, arrivals, what, value)
            await wait_all_tasks_blocked()
            if what != "sleep":
                check_all_who_can_are_in(world)
            world.book._admissions.advance()
        await make_room(world)
        for arrival in arrivals:
            assert arrival.grant is not None or arrival.scope.cancel_called, world.book.queue()
        assert not [entry for entry in world.book.queue() if entry.process is not None]
    world.store.close()


def check_all_who_can_are_in(world: World) -> None:
    """A look that nothing asked for finds nothing to do.  (After a sleep it may: ranks are looked at once in a second.)"""
    before = world.book.leases(), dict(world.book.grants())
    world.book._admissions.advance()
    assert (world.book.leases(), dict(world.book.grants())) == before


async def do(world: World, nursery: trio.Nursery, arrivals: list[Arrival], what: str, value: Any) -> None:
    book = world.book
    if what == "arrive":
        arrivals.append(Arrival(world, nursery, len(arrivals) + 1, value))
    elif what == "give up" and value < len(arrivals):
        arrivals[value].scope.cancel()
    elif what == "leave" and value < len(book.grants()):
        book.leave(list(book.grants())[value])
    elif what == "lease":
        uid, sm, processes, group = value
        try:
            book.create(ROOT, spec(sm, by_uid(uid), processes=processes, group=group, wait_seconds=100.0))
        except Exception as refused:
            assert terms_say_no(world, refused)
    elif what == "release" and value < len(book.leases()):
        book.release(book.leases()[value].id)
    elif what == "sleep":
        await trio.sleep(value)


def terms_say_no(world: World, refused: Exception) -> bool:
    return isinstance(refused, NoRoom) or len(world.book.queue()) >= world.settings.max_queue


async def make_room(world: World) -> None:
    """End all leases, then the admitted clients, one after the other; if leases are required, give each client one."""
    for lease in world.book.leases():
        world.book.release(lease.id)
    world.change(max_clients=1000, user_clients=None, max_queue=1000)
    if world.settings.default == "refuse":
        for pid in list(world.book.grants()):
            world.book.leave(pid)
        for uid in (ROOT, ALICE, BOB):
            lease = world.book.create(ROOT, spec(30.0, by_uid(uid), processes=30))
            assert lease.state is LeaseState.ACTIVE
    await wait_all_tasks_blocked()
