"""LeaseBook: how much is done in one step for a user with many waiting clients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.wait_queue import WaitQueue
from tests.unit.leases.world import ALICE, BOB, ROOT, Arrival, World, by_token, by_uid, ids, spec

PLACES, CLIENTS, LEASES = 3, 20, 8


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, AdmissionSettings(user_queue=PLACES))


@pytest.fixture
def count(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[object]]:
    """Return a function that counts the calls of a method."""

    def watch(thing: Any, name: str) -> list[object]:
        calls: list[object] = []
        method = getattr(thing, name)

        def counted(*words: Any) -> object:
            calls.append(words)
            return method(*words)

        monkeypatch.setattr(thing, name, counted)
        return calls

    return watch


def small(uid: int = ALICE, **fields: Any) -> Any:
    """A lease that always has room, for one process."""
    return spec(0.0, by_uid(uid), memory_bytes={"0": 1 << 20}, **fields)


async def crowd(world: World, nursery: trio.Nursery) -> list[Arrival]:
    """Return clients of which one runs, PLACES wait with a place, and the others without."""
    world.book.create(ALICE, small())
    made = [Arrival(world, nursery, pid) for pid in range(1, CLIENTS + 1)]
    await wait_all_tasks_blocked()
    assert world.book.queued == PLACES
    return made


async def test_clients_that_come_together_are_considered_together(world, count, autojump_clock: MockClock):
    """Each newcomer had the whole queue looked through, which takes milliseconds."""
    async with world.running() as nursery:
        world.change(user_queue=CLIENTS)
        world.book.create(ALICE, small())
        await world.admit(1)
        advances = count(world.book._admissions, "advance")
        world.events.clear()
        many = [Arrival(world, nursery, pid) for pid in range(2, CLIENTS + 1)]
        await wait_all_tasks_blocked()
        assert len(advances) <= 2
        reason = "lease 1 has 1 of its 1 processes"
        assert [each.told for each in many] == [[reason]] * len(many)
        assert sorted((facts["pid"], facts["reason"]) for topic, facts in world.events if topic == "client.queued") == [
            (each.pid, reason) for each in many
        ]


async def test_a_lease_is_matched_with_clients_that_have_a_place(world, count, autojump_clock: MockClock):
    """2,500 waiting clients took 0.7 s for each lease of their user, with deep cgroups."""
    async with world.running() as nursery:
        await crowd(world, nursery)
        matches = count(world.book._register, "match")
        lease = world.book.create(ALICE, small())
        assert len(matches) <= PLACES + 1  # one goes in, and another gets its place
        matches.clear()
        world.book.release(lease.id)
        assert len(matches) <= PLACES


async def test_leases_that_end_together_let_each_client_be_matched_once(world, count, autojump_clock: MockClock):
    """The newest ended first, and all clients were matched with the next one: 64 leases took 5 s in one step of the loop."""
    async with world.running() as nursery:
        await crowd(world, nursery)
        many = [world.book.create(ALICE, small(ttl_seconds=LEASES - number)) for number in range(LEASES)]
        await wait_all_tasks_blocked()
        matches = count(world.book._register, "match")
        world.now += 2 * LEASES
        world.book._end_what_is_over(world.clock(), LEASES)
        assert not {lease.id for lease in many} & set(ids(world.book.leases()))
        assert len(matches) <= PLACES


async def test_a_client_that_gets_a_place_is_matched_with_the_leases_of_then(world, autojump_clock: MockClock):
    """Also with a lease that came while it had none, and not with one that has ended."""
    async with world.running() as nursery:
        clients = await crowd(world, nursery)
        world.book.create(ROOT, spec(10.0, by_uid(), processes=CLIENTS))
        world.book.release(1)
        await wait_all_tasks_blocked()
        assert sorted(each.grant.lease_id for each in clients if each.grant) == [1] + [2] * (CLIENTS - 1)


async def test_a_place_is_offered_to_each_user_once(world, count, autojump_clock: MockClock):
    """Each of the thousands outside of one user was asked about, for each client of another user that left."""
    async with world.running() as nursery:
        await crowd(world, nursery)
        world.book.create(BOB, spec(0.0, by_token(), memory_bytes={"0": 1 << 20}))
        world.change(default="refuse")
        others = Arrival(world, nursery, 100, BOB)
        await wait_all_tasks_blocked()
        asked = count(WaitQueue, "has_place_for")
        others.scope.cancel()
        await wait_all_tasks_blocked()
        assert len(asked) == 1
