"""LeaseBook: who waits, in which order, and what ends it."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import NoRoom, Refused, TooMany
from mpsd.leases.rules import queue
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.rules.sm_pools import ClientShare
from mpsd.model.lease import LeaseState, Refusal
from mpsd.model.process import ProcessId
from tests.unit.leases.world import ALICE, BOB, ROOT, Arrival, World, by_token, by_uid, ids, process, spec


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_further_processes_wait_for_a_place_of_their_lease(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(50, processes=2))
    for pid in (1, 2):
        await world.admit(pid)
    async with world.running() as nursery:
        third = Arrival(world, nursery, 3)
        await wait_all_tasks_blocked()
        assert third.told == ["lease 1 has 2 of its 2 processes"]
        [entry] = world.book.queue()
        assert (entry.position, entry.process, entry.lease_id, entry.uid) == (1, process(3), 1, ALICE)
        assert entry.reason == third.told[-1]
        await trio.sleep(5)
        assert world.book.queue()[0].waited_seconds == pytest.approx(5)
        world.book.leave(process(1))
        await wait_all_tasks_blocked()
        assert third.grant is not None
        assert third.grant.sm_percent == 25.0
        assert not world.book.queue()
    assert world.topics()[-4:] == ["client.admitted", "client.queued", "client.left", "client.admitted"]


async def test_two_connections_of_one_waiting_process_are_one_in_the_queue(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(50))
    await world.admit(1)
    async with world.running() as nursery:
        pair = [Arrival(world, nursery, 2) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert len(world.book.queue()) == 1
        pair[0].scope.cancel()
        await wait_all_tasks_blocked()
        assert len(world.book.queue()) == 1
        world.book.leave(process(1))
        await wait_all_tasks_blocked()
        assert pair[1].grant is not None


async def test_a_client_that_gives_up_gives_up_its_place(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(50))
    await world.admit(1)
    async with world.running() as nursery:
        second, third = Arrival(world, nursery, 2), Arrival(world, nursery, 3)
        await wait_all_tasks_blocked()
        first_of_both = world.book.queue()[0].process
        gone, stays = (second, third) if first_of_both == process(2) else (third, second)
        gone.scope.cancel()
        await wait_all_tasks_blocked()
        assert [entry.process for entry in world.book.queue()] == [process(stays.pid)]
        world.book.leave(process(1))
        await wait_all_tasks_blocked()
        assert stays.grant is not None
        assert gone.grant is None


async def test_a_client_waits_for_its_lease_that_waits_itself(world, autojump_clock: MockClock):
    """A scheduler makes the lease and starts the job: it must not run without the lease's limits meanwhile."""
    world.book.create(ROOT, spec(100, by_uid(BOB)))
    world.book.create(ROOT, spec(60, wait_seconds=100))
    async with world.running() as nursery:
        client = Arrival(world, nursery, 1)
        await wait_all_tasks_blocked()
        assert client.told == ["its lease 2 waits for room itself"]
        assert [(entry.lease_id, entry.process) for entry in world.book.queue()] == [(2, None), (2, process(1))]
        world.book.release(1)
        await wait_all_tasks_blocked()
        assert client.grant is not None
        assert client.grant.sm_percent == 60.0
    assert "lease.activated" in world.topics()


async def test_a_lease_that_waited_too_long_is_refused_and_its_client_gets_the_default(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(100, by_uid(BOB)))
    world.book.create(ROOT, spec(60, wait_seconds=100))
    async with world.running() as nursery:
        client = Arrival(world, nursery, 1)
        await trio.sleep(99)
        assert client.grant is None
        await trio.sleep(1.5)
        assert client.grant is not None
        assert client.grant.lease_id is None
    assert ids(world.book.leases()) == [1]
    assert "as long as it may" in world.facts("lease.refused")["reason"]


async def test_the_time_of_a_lease_that_waited_begins_when_it_has_room(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(100, ttl_seconds=50))
    waiting = world.book.create(ROOT, spec(60, ttl_seconds=10, wait_seconds=100))
    assert (waiting.state, waiting.expires_at) == (LeaseState.QUEUED, None)
    async with world.running():
        await trio.sleep(50.1)
        found = world.book.find(waiting.id)
        assert (found.state, found.expires_at) == (LeaseState.ACTIVE, pytest.approx(world.now + 60, abs=0.2))
        await trio.sleep(10.1)
        assert not world.book.leases()


async def test_a_lease_made_for_a_waiting_client_is_its_lease(world, autojump_clock: MockClock):
    world.change(default="refuse")
    async with world.running() as nursery:
        client = Arrival(world, nursery, 1)
        await wait_all_tasks_blocked()
        assert client.told == ["no lease names it, and clients without one may not run"]
        world.book.create(ROOT, spec(30))
        await wait_all_tasks_blocked()
        assert client.grant is not None
        assert client.grant.sm_percent == 30.0


async def test_one_that_may_be_told_is_told_after_so_long(world, autojump_clock: MockClock):
    world.change(refuse_with=Refusal.ERROR, wait_seconds=20.0)
    world.book.create(ROOT, spec(50))
    await world.admit(1)
    async with world.running() as nursery:
        client = Arrival(world, nursery, 2)
        await trio.sleep(19)
        assert client.refused is None
        assert world.book.queue()[0].deadline == pytest.approx(world.now + 20)
        await trio.sleep(1.5)
        assert isinstance(client.refused, Refused)
        assert "as long as it may" in str(client.refused)
    assert not world.book.queue()


async def test_client_slots_are_given_in_turn(world, autojump_clock: MockClock):
    world.change(max_clients=1)
    await world.admit(1)
    async with world.running() as nursery:
        second = Arrival(world, nursery, 2)
        await wait_all_tasks_blocked()
        assert second.told == ["clients: 1 asked, 1 of 1 taken"]
        world.book.leave(process(1))
        await wait_all_tasks_blocked()
        assert second.grant is not None


async def test_a_users_clients_are_bounded_and_others_pass(world, autojump_clock: MockClock):
    world.change(user_clients=1)
    await world.admit(1)
    async with world.running() as nursery:
        second = Arrival(world, nursery, 2)
        await wait_all_tasks_blocked()
        await trio.sleep(1000)
        assert second.told == ["quota of user 1000, clients: 1 asked, 1 of 1 taken"]
        await world.admit(3, BOB)
        await world.admit(4, ROOT)
        await world.admit(5, ROOT)


async def test_the_queue_has_a_bound_and_one_user_does_not_fill_it(world, autojump_clock: MockClock):
    world.change(default="refuse", max_queue=3, user_queue=2)
    async with world.running() as nursery:
        clients = [Arrival(world, nursery, pid) for pid in range(1, 5)]
        await wait_all_tasks_blocked()
        assert len(world.book.queue()) == 2
        outside = [client for client in clients if client.told == ["the queue has no place for its user"]]
        assert len(outside) == 2
        inside = next(client for client in clients if client not in outside)
        bob = Arrival(world, nursery, 9, BOB)
        await wait_all_tasks_blocked()
        assert world.book.queue()[-1].process == process(bob.pid)
        world.book.create(ROOT, spec(100, by_token()))
        with pytest.raises(TooMany, match="no place"):
            world.book.create(ROOT, spec(100, by_token(), wait_seconds=10))
        inside.scope.cancel()
        await wait_all_tasks_blocked()
        assert len(world.book.queue()) == 3
        assert sum(client.told[-1] != outside[0].told[0] for client in outside) == 1  # the first of them has come in


async def test_where_a_client_can_be_told_a_full_queue_refuses_it(world, autojump_clock: MockClock):
    world.change(user_queue=1, refuse_with=Refusal.ERROR)
    world.book.create(ROOT, spec(50))
    await world.admit(1)
    async with world.running() as nursery:
        Arrival(world, nursery, 2)
        await wait_all_tasks_blocked()
        with pytest.raises(Refused, match="no place"):
            await world.admit(3)


async def test_small_leases_may_pass_a_large_one_for_a_while_only(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(60, ttl_seconds=1000))
    world.book.create(ROOT, spec(80, wait_seconds=5000))
    async with world.running():
        await trio.sleep(29)
        assert world.book.create(ROOT, spec(20)).state is LeaseState.ACTIVE
        await trio.sleep(2)
        with pytest.raises(NoRoom, match="set aside for those ahead"):
            world.book.create(ROOT, spec(20))
        late = world.book.create(ROOT, spec(20, wait_seconds=5000))
        assert [entry.lease_id for entry in world.book.queue()] == [2, late.id]
        world.book.release(3)
        await trio.sleep(1000)
        assert world.book.find(2).state is LeaseState.ACTIVE
        assert world.book.find(late.id).state is LeaseState.ACTIVE


async def test_priority_goes_first_and_age_makes_up_for_it(world, autojump_clock: MockClock):
    first = world.book.create(ROOT, spec(100, ttl_seconds=10))
    async with world.running():
        low = world.book.create(ROOT, spec(100, priority=1, wait_seconds=5000))
        await trio.sleep(1)
        high = world.book.create(ROOT, spec(100, wait_seconds=5000, ttl_seconds=200))
        assert [entry.lease_id for entry in world.book.queue()] == [high.id, low.id]
        await trio.sleep(10)
        assert world.book.find(high.id).state is LeaseState.ACTIVE
        assert first.id not in ids(world.book.leases())
        await trio.sleep(120)
        later = world.book.create(ROOT, spec(100, wait_seconds=5000))
        assert [entry.lease_id for entry in world.book.queue()] == [low.id, later.id]


async def test_deadlines_order_those_of_equal_urgency(world):
    world.book.create(ROOT, spec(100))
    patient, urgent = (world.book.create(ROOT, spec(50, wait_seconds=seconds)) for seconds in (500, 50))
    assert [entry.lease_id for entry in world.book.queue()] == [urgent.id, patient.id]


async def test_settings_can_change_while_clients_wait(world, autojump_clock: MockClock):
    world.change(max_clients=1)
    await world.admit(1)
    async with world.running() as nursery:
        second = Arrival(world, nursery, 2)
        await wait_all_tasks_blocked()
        world.change(max_clients=2)
        await wait_all_tasks_blocked()
        assert second.grant is not None


# -- many ends at once -----------------------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how often the queue was looked through since the last call: that takes milliseconds if it is full."""
    counted, plan = [0], queue.plan

    def count(*arguments: object) -> queue.QueuePlan:
        counted[0] += 1
        return plan(*arguments)

    def take() -> int:
        found, counted[0] = counted[0], 0
        return found

    monkeypatch.setattr(queue, "plan", count)
    return take


class EndsInOneStep(trio.abc.Instrument):
    """The most leases that ended in one step of a task, in which all of mpsd waits."""

    def __init__(self, world: World) -> None:
        self.most, self._world, self._before = 0, world, 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = len(self._world.book.leases())

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._before - len(self._world.book.leases()))


async def test_leases_that_expire_together_end_in_small_steps(world, plans, autojump_clock: MockClock):
    """A user's leases, each with a look through a full queue, made mpsd stand still for a second: a container's, for 40 s."""
    world.book.create(ROOT, spec(100))
    for each in range(20):
        world.book.create(BOB, spec(50, by_uid(BOB), wait_seconds=1e6, request_key=str(each)))
    for each in range(200):
        world.book.create(ALICE, spec(0, memory_bytes={"0": 1 << 20}, ttl_seconds=5, request_key=str(each)))
    async with world.running():
        plans()
        ends = EndsInOneStep(world)
        trio.lowlevel.add_instrument(ends)
        await trio.sleep(6)
        trio.lowlevel.remove_instrument(ends)
    assert len(world.book.leases()) == 21
    assert ends.most <= 64
    assert plans() <= 20


async def test_processes_that_end_together_cost_one_look_at_the_queue(tmp_path, plans, autojump_clock: MockClock):
    world = World(tmp_path, AdmissionSettings(max_clients=200))
    for pid in range(200):
        await world.admit(pid, ROOT)
    async with world.running() as nursery:
        waiting = [Arrival(world, nursery, 1000 + each, BOB) for each in range(20)]
        await wait_all_tasks_blocked()
        plans()
        for pid in range(150):
            world.book.leave(process(pid))
        await wait_all_tasks_blocked()
        assert all(each.grant for each in waiting)
        assert plans() <= 4


class Sums(dict[ProcessId, ClientShare]):
    """The clients of a pool; counts how often they are looked through."""

    looks = 0

    def values(self):
        self.looks += 1
        return super().values()


async def test_clients_that_stop_waiting_together_cost_one_look_at_the_queue(tmp_path, plans, autojump_clock: MockClock):
    """Those of one user who wait for a group of shares: each end with a look of its own made mpsd stand still for 7 s."""
    world = World(tmp_path, AdmissionSettings(user_queue=100))
    world.book.create(ROOT, spec(100, by_uid(BOB), group="g", processes=200))
    for pid in range(200):
        await world.admit(pid, BOB)
    [pool] = world.book._account.pools.values()
    async with world.running() as nursery:
        crowd = [Arrival(world, nursery, 1000 + each, BOB) for each in range(300)]
        await wait_all_tasks_blocked()
        assert world.book.queued == 100
        last = Arrival(world, nursery, 2000, BOB)
        await wait_all_tasks_blocked()
        plans()
        pool.clients = counted = Sums(pool.clients)
        for each in crowd:
            each.scope.cancel()
        await wait_all_tasks_blocked()
        assert [entry.process for entry in world.book.queue()] == [process(last.pid)]
        assert plans() <= 3  # one of them is `queue` here
        assert counted.looks == 0
        assert last.told[-1] == "other members hold all shares of its group"


async def test_a_client_that_finds_no_place_costs_no_look_at_the_queue(world, plans, autojump_clock: MockClock):
    world.change(default="refuse", user_queue=2)
    async with world.running() as nursery:
        for pid in range(2):
            Arrival(world, nursery, pid)
        await wait_all_tasks_blocked()
        plans()
        outside = [Arrival(world, nursery, pid) for pid in range(2, 50)]
        await wait_all_tasks_blocked()
        assert {each.told[-1] for each in outside} == {"the queue has no place for its user"}
        assert plans() <= 1  # of the task that looks at times
