"""LeaseBook after a restart of mpsd, and when its disk fails."""

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import BadRequest, NoRoom, UnusablePath
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.lease import LeaseState
from mpsd.model.process import Credentials
from tests.unit.leases.world import ALICE, BOB, GIB, GPU_A, ROOT, Arrival, World, by_pid, by_token, by_uid, ids, process, spec


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def fill_disk(world: World, is_full: bool = True) -> None:
    world.store._db.execute(f"PRAGMA query_only={int(is_full)}")


async def test_leases_and_grants_are_what_they_were(world):
    lease = world.book.create(ROOT, spec(60, ttl_seconds=100, memory_bytes={GPU_A: 8 * GIB}, processes=2))
    grant = await world.admit(1)
    book = world.restarted()
    assert book.leases() == [lease]
    assert book.grant_of(process(1)) == grant
    assert book.adopt(process(1), Credentials(1, ALICE, ALICE)) == grant
    assert await world.admit(1) == grant


async def test_nothing_is_counted_twice(world, autojump_clock: MockClock):
    """The client's place in its lease, its slot, and the lease's share."""
    world.book.create(ROOT, spec(60, processes=2))
    await world.admit(1)
    before = dict(world.book._account.ledger.used)
    book = world.restarted()
    book.adopt(process(1), Credentials(1, ALICE, ALICE))
    assert book._account.ledger.used == before
    book.create(ROOT, spec(40, by_uid(BOB)))
    await world.admit(2)
    async with world.running() as nursery:
        third = Arrival(world, nursery, 3)
        await wait_all_tasks_blocked()
        assert third.grant is None


async def test_a_client_without_a_lease_is_taken_in_with_the_default(world):
    """Its grant is not on disk, so it had no lease."""
    await world.admit(1)
    world.book.create(ROOT, spec(60))
    book = world.restarted()
    assert book.grant_of(process(1)) is None
    assert book.adopt(process(1), Credentials(1, ALICE, ALICE)).lease_id is None
    assert (await world.admit(1)).lease_id is None
    book.leave(process(1))
    assert not book.grants()


async def test_who_ended_meanwhile_holds_nothing(world):
    world.book.create(ROOT, spec(60))
    await world.admit(1)
    world.dead.add(1)
    book = world.restarted()
    assert not book.grants()
    assert (await world.admit(2)).lease_id == 1
    assert not [one for one in world.store.admitted() if one.process == process(1)]


async def test_a_pid_that_means_another_process_now_is_nobodys_lease(world):
    world.book.create(ROOT, spec(60, by_pid(1)))
    world.dead.add(1)
    assert not world.restarted().leases()
    assert world.facts("lease.released")["reason"] == "its process has ended"


def test_a_lease_that_expired_meanwhile_is_not_there(world):
    world.book.create(ROOT, spec(60, ttl_seconds=5))
    world.now += 6
    assert not world.restarted().leases()


def test_a_lease_that_waits_goes_on_waiting_from_when_it_was_made(world):
    world.book.create(ROOT, spec(60))
    waiting = world.book.create(ROOT, spec(60, wait_seconds=100))
    world.now += 40
    [entry] = world.restarted().queue()
    assert (entry.lease_id, entry.waited_seconds) == (waiting.id, 40)
    world.book.release(1)
    assert world.book.find(waiting.id).state is LeaseState.ACTIVE


def test_one_that_has_room_meanwhile_is_active(world):
    """mpsd was killed between the release of one and the activation of the other."""
    world.book.create(ROOT, spec(60))
    waiting = world.book.create(ROOT, spec(60, wait_seconds=100))
    world.store.remove([1])
    assert world.restarted().find(waiting.id).state is LeaseState.ACTIVE


async def test_what_clients_of_an_ended_lease_hold_counts_on(world):
    world.book.create(ROOT, spec(60, memory_bytes={GPU_A: 60 * GIB}))
    await world.admit(1)
    world.book.release(1)
    book = world.restarted()
    with pytest.raises(NoRoom, match="60 % of 100 % taken by 0 leases and 1 clients"):
        book.create(ROOT, spec(50))
    with pytest.raises(NoRoom, match="MiB"):
        book.create(ROOT, spec(1, memory_bytes={GPU_A: 30 * GIB}))
    book.leave(process(1))
    book.create(ROOT, spec(100, memory_bytes={GPU_A: 80 * GIB}))


def test_a_gpu_that_has_gone_has_no_room(world):
    world.book.create(ROOT, spec(60, gpus=("1",)))
    world.devices = world.devices[:1]
    book = world.restarted()
    assert ids(book.leases()) == [1]
    book.create(ROOT, spec(60))


# -- a disk that fails -----------------------------------------------------------------------------------------------


def test_a_lease_that_cannot_be_stored_does_not_exist(world):
    fill_disk(world)
    with pytest.raises(UnusablePath):
        world.book.create(ROOT, spec(60))
    assert not world.book.leases()
    fill_disk(world, False)
    world.book.create(ROOT, spec(100))


def test_a_release_that_cannot_be_stored_is_none(world):
    lease = world.book.create(ROOT, spec(60, ttl_seconds=5))
    fill_disk(world)
    for change in (lambda: world.book.release(1), lambda: world.book.renew(1, 50)):
        with pytest.raises(UnusablePath):
            change()
    assert world.book.leases() == [lease]
    fill_disk(world, False)
    assert world.restarted().leases() == [lease]


async def test_a_client_waits_until_its_grant_can_be_stored(world, autojump_clock: MockClock):
    """If it were admitted without that, it would run without its limits after a restart of mpsd, unnoticed."""
    world.book.create(ROOT, spec(60))
    fill_disk(world)
    async with world.running() as nursery:
        client = Arrival(world, nursery, 1)
        await wait_all_tasks_blocked()
        assert client.grant is None
        assert "cannot be written" in client.told[-1]
        fill_disk(world, False)
        await trio.sleep(70)
        assert client.grant is not None


async def test_an_end_that_cannot_be_stored_is_tried_again(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(60, ttl_seconds=5))
    world.book.create(ROOT, spec(10, by_pid(7)))
    async with world.running():
        fill_disk(world)
        world.dead.add(7)
        await trio.sleep(30)
        assert ids(world.book.leases()) == [1, 2]
        fill_disk(world, False)
        await trio.sleep(41)
        assert not world.book.leases()


async def test_ends_that_cannot_be_stored_are_tried_every_5_s_and_logged_once(world, autojump_clock: MockClock):
    """One that had waited for as long as it may was tried every 20 ms, with a line for each."""
    tries = []
    world.book.create(ROOT, spec(60))
    for _ in range(3):
        world.book.create(ROOT, spec(60, wait_seconds=5))
        world.book.create(ROOT, spec(1, ttl_seconds=5))
    with structlog.testing.capture_logs() as logs:
        async with world.running():
            fill_disk(world)
            remove = world.store.remove
            world.store.remove = lambda *args: (tries.append(args), remove(*args))
            await trio.sleep(65)
            assert 10 <= len(tries) <= 14
            fill_disk(world, False)
            await trio.sleep(6)
            assert ids(world.book.leases()) == [1]
    assert len([each for each in logs if each["event"] == "store.failed"]) == 1


async def test_a_lease_that_got_room_and_cannot_be_stored_waits_on(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(60))
    world.book.create(ROOT, spec(60, wait_seconds=1000))
    async with world.running():
        world.store._db.execute("CREATE TEMP TRIGGER t BEFORE UPDATE ON leases BEGIN SELECT RAISE(ABORT, 'disk'); END")
        world.book.release(1)
        await wait_all_tasks_blocked()
        assert world.book.find(2).state is LeaseState.QUEUED
        assert "disk" in world.book.queue()[0].reason
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                world.book.configure(world.book.settings)
            assert not logs, "the same reason was logged each time"
        world.store._db.execute("DROP TRIGGER t")
        await trio.sleep(61)
        assert world.book.find(2).state is LeaseState.ACTIVE


async def test_a_client_that_leaves_while_the_disk_is_full_is_not_back_after_a_restart(world):
    world.book.create(ROOT, spec(60, by_token()))
    world.book.create(ROOT, spec(40))
    await world.admit(1)
    fill_disk(world)
    world.book.leave(process(1))
    assert not world.book.grants()
    world.dead.add(1)
    assert not world.restarted().grants()


def test_shares_of_groups_are_as_they_were_dealt(tmp_path):
    async def main() -> None:
        world = World(tmp_path, AdmissionSettings(redistribute="group"))
        for uid in (ALICE, BOB):
            world.book.create(ROOT, spec(40, by_uid(uid), group="g"))
        world.now += 31
        assert (await world.admit(1)).sm_percent == 80.0
        world.book.release(1)
        book = world.restarted()
        assert book.grants()[process(1)].sm_percent == 80.0
        book.create(ROOT, spec(20))
        with pytest.raises(NoRoom):
            book.create(ROOT, spec(1))

    trio.run(main)


async def test_a_process_that_cannot_be_read_keeps_its_lease_and_ends_no_mpsd(world, autojump_clock: MockClock):
    """With some kernels a user can prevent each read of their process: mpsd ended at its next look, and did not start again."""
    world.book.create(ROOT, spec(20, by_pid(1)))
    world.book.create(ROOT, spec(20))
    await world.admit(2)
    world.unread |= {1, 2}
    async with world.running():
        await trio.sleep(60)
    assert (len(world.book.leases()), set(world.book.grants())) == (2, {process(2)})
    book = world.restarted()
    assert (len(book.leases()), set(book.grants())) == (2, {process(2)})
    with pytest.raises(BadRequest, match="cannot be read"):
        book.create(ROOT, spec(20, by_pid(1)))
