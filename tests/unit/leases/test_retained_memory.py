"""LeaseBook: the memory of a client that ended in a contained domain counts until the domain has ended."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import NoRoom
from mpsd.leases.rules.settings import AdmissionSettings
from tests.unit.leases.world import ALICE, BOB, GIB, GPU_A, ROOT, Arrival, World, by_pid, by_uid, process, spec

TOTAL = 80  # GiB of a GPU


class ContainedWorld(World):
    """A world with a domain that contains an exception."""

    async def client_ends(self, pid: int) -> None:
        """Run a client of this user until its end in a contained domain."""
        await self.admit(pid, ALICE)
        self.contained.add(pid)
        self.end(pid)

    def end(self, pid: int) -> None:
        self.dead.add(pid)
        self.book.leave(process(pid))

    def domain_ends(self) -> None:
        ended, self.contained = self.contained, set()
        for each in ended:
            self.book.leave(process(each))

    @asynccontextmanager
    async def arrival(self, pid: int):
        async with self.running() as nursery:
            arrival = Arrival(self, nursery, pid, ALICE)
            await wait_all_tasks_blocked()
            yield arrival


@pytest.fixture
def world(tmp_path):
    return ContainedWorld(tmp_path)


def of(gib: int, processes: int = 1, uid: int = ALICE, **fields):
    return spec(10, by_uid(uid), memory_bytes={GPU_A: gib * GIB}, processes=processes, **fields)


def taken(world: ContainedWorld) -> dict:
    return {scope: amount for scope, amount in world.book._account.ledger.used.items() if amount}


async def test_its_memory_is_not_given_to_another_client_while_others_have_reserved_the_rest(world, autojump_clock: MockClock):
    """Else the user holds twice its lease, and a client of another gets OUT_OF_MEMORY inside its reservation."""
    world.book.create(ROOT, of(40))
    world.book.create(ROOT, of(40, uid=BOB))
    await world.client_ends(1)
    async with world.arrival(2) as second:
        assert second.told[-1].startswith("lease 1 has 1 of its 1 processes, 1 of which ended, and their memory is not")
        assert (await world.admit(9, BOB)).memory_bytes[GPU_A] == 40 * GIB
        world.domain_ends()
        await wait_all_tasks_blocked()
        assert second.grant is not None


async def test_a_free_place_of_its_lease_is_still_free(world):
    world.book.create(ROOT, of(TOTAL, processes=2))
    await world.client_ends(1)
    assert (await world.admit(2)).memory_bytes[GPU_A] == 40 * GIB


async def test_the_next_client_starts_at_once_where_the_budgets_have_room(world, autojump_clock: MockClock):
    """A client that is started again in another domain does not wait for its neighbours in the contained one."""
    world.book.create(ROOT, of(30))
    await world.client_ends(1)
    assert (await world.admit(2)).memory_bytes[GPU_A] == 30 * GIB
    with pytest.raises(NoRoom, match="61440 MiB of 81920 MiB taken by 1 lease and 1 clients outside of leases"):
        world.book.create(ROOT, of(30, uid=BOB))
    world.domain_ends()
    world.book.create(ROOT, of(30, uid=BOB))


async def test_one_that_waits_starts_when_another_lease_leaves_room(world, autojump_clock: MockClock):
    world.book.create(ROOT, of(40))
    other = world.book.create(ROOT, of(40, uid=BOB))
    await world.client_ends(1)
    async with world.arrival(2) as second:
        assert second.grant is None
        world.book.release(other.id)
        await wait_all_tasks_blocked()
        assert second.grant is not None


async def test_a_users_quota_has_it_too(world, autojump_clock: MockClock):
    """With a client that sleeps in each contained domain, a user held several times its quota."""
    world.change(user_memory_bytes=20 * GIB)
    world.book.create(ALICE, of(20))
    await world.client_ends(1)
    async with world.arrival(2) as second:
        assert second.grant is None
        world.domain_ends()
        await wait_all_tasks_blocked()
        assert second.grant is not None


async def test_it_counts_after_the_end_of_its_lease(world):
    lease = world.book.create(ROOT, of(60))
    await world.client_ends(1)
    world.book.release(lease.id)
    with pytest.raises(NoRoom):
        world.book.create(ROOT, of(40, uid=BOB))
    world.book.create(ROOT, of(20, uid=BOB))
    world.domain_ends()
    world.book.create(ROOT, of(60))


async def test_it_counts_where_its_lease_ends_with_it(world):
    world.book.create(ROOT, spec(10, by_pid(1), memory_bytes={GPU_A: 60 * GIB}))
    await world.client_ends(1)
    assert not world.book.leases()
    for _ in range(2):
        with pytest.raises(NoRoom):
            world.book.create(ROOT, of(40, uid=BOB))
        world.restarted()
    world.domain_ends()
    world.book.create(ROOT, of(60))
    assert not world.store.admitted()


async def test_it_takes_neither_sms_nor_a_slot_nor_a_place_in_any_list(world):
    lease = world.book.create(ROOT, spec(100, memory_bytes={GPU_A: 10 * GIB}))
    world.book.release(lease.id)
    nothing = taken(world)
    world.change(max_clients=1)
    world.book.create(ROOT, spec(100, memory_bytes={GPU_A: 10 * GIB}))
    await world.client_ends(1)
    world.book.release(2)
    assert {scope.kind.value for scope in taken(world)} == {"memory", "clients"}  # of a GPU, for messages
    assert not world.book.grants()
    assert world.facts("client.left")["pid"] == 1
    world.book.create(ROOT, spec(100, by_uid(BOB)))
    await world.admit(2, BOB)
    world.book.leave(process(2))
    world.book.release(3)
    world.domain_ends()
    assert taken(world) == nothing


async def test_its_share_is_dealt_to_the_others_of_its_group(tmp_path, autojump_clock: MockClock):
    """Its memory can be taken for an hour, its SMs are idle."""
    world = ContainedWorld(tmp_path, AdmissionSettings(redistribute="group"))
    for uid in (ALICE, BOB):
        world.book.create(ROOT, of(10, uid=uid, group="replicas"))
    async with world.running():
        await world.client_ends(1)
        await trio.sleep(31)
        assert (await world.admit(2, BOB)).sm_percent == 20.0


async def test_a_client_without_a_memory_limit_counts_no_longer(world):
    world.book.create(ROOT, spec(50))
    await world.client_ends(1)
    assert (await world.admit(2)).lease_id == 1
    assert [one.process for one in world.store.admitted()] == [process(2)]


async def test_no_grant_stays_on_disk_without_a_memory_limit(world):
    world.book.create(ROOT, spec(10, by_pid(1)))
    await world.client_ends(1)
    assert not world.store.admitted()


@pytest.mark.parametrize("is_beside", [False, True], ids=["in its lease", "beside its lease"])
async def test_the_next_mpsd_counts_it_the_same(world, is_beside, autojump_clock: MockClock):
    world.book.create(ROOT, of(40))
    await world.client_ends(1)
    if is_beside:
        await world.admit(2)
    else:
        world.book.create(ROOT, of(40, uid=BOB))
    before = taken(world)
    world.restarted()
    assert taken(world) == before
    async with world.arrival(3) as third:
        assert third.grant is None
        world.domain_ends()
        if is_beside:
            world.end(2)
        await wait_all_tasks_blocked()
        assert third.grant is not None
    assert [one.process for one in world.store.admitted()] == [process(3)]


async def test_one_that_ended_while_no_mpsd_ran_counts_too(world):
    world.book.create(ROOT, of(TOTAL))
    await world.admit(1)
    world.dead.add(1)
    world.contained.add(1)
    before = {scope: amount for scope, amount in taken(world).items() if scope.kind.value == "processes"}
    world.restarted()
    assert {scope: amount for scope, amount in taken(world).items() if scope.kind.value == "processes"} == before
    world.domain_ends()
    assert not world.store.admitted()


async def test_a_look_at_the_processes_frees_none_early(world, autojump_clock: MockClock):
    world.book.create(ROOT, of(TOTAL))
    await world.client_ends(1)
    async with world.arrival(2) as second:
        autojump_clock.jump(100)
        await wait_all_tasks_blocked()
        assert second.grant is None
