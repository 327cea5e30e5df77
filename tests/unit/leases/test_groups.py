"""LeaseBook with shares that are dealt anew in groups."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import NoRoom, TooMany
from mpsd.leases.rules import usage
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.lease import DomainPolicy
from tests.unit.leases.world import ALICE, BOB, GPU_A, ROOT, Arrival, World, by_token, by_uid, process, spec

CAROL = 1002


@pytest.fixture
def world(tmp_path):
    """Return three members with 30 % each."""
    world = World(tmp_path, AdmissionSettings(redistribute="group"))
    for uid in (ALICE, BOB, CAROL):
        world.book.create(ROOT, spec(30, by_uid(uid), group="replicas"))
    return world


def held(world: World) -> float:
    return sum(grant.sm_percent for grant in world.book.grants().values())


async def all_three(world: World) -> None:
    for pid, uid in ((1, ALICE), (2, BOB), (3, CAROL)):
        assert (await world.admit(pid, uid)).sm_percent == 30.0


async def test_the_share_of_one_that_died_is_dealt_at_the_others_next_start(world, autojump_clock: MockClock):
    async with world.running():
        await all_three(world)
        world.book.leave(process(1))
        assert held(world) == 60.0  # who runs keeps what it has
        await trio.sleep(31)
        for pid, uid in ((2, BOB), (3, CAROL)):
            world.book.leave(process(pid))
            grant = await world.admit(pid + 10, uid)
            assert grant.sm_percent == 45.0
            assert "45 % instead of 30 %" in grant.rule
        assert held(world) == 90.0


async def test_one_that_comes_back_soon_finds_its_share(world, autojump_clock: MockClock):
    async with world.running():
        await all_three(world)
        world.book.leave(process(1))
        world.book.leave(process(2))
        await trio.sleep(5)
        assert (await world.admit(12, BOB)).sm_percent == 30.0
        assert (await world.admit(11, ALICE)).sm_percent == 30.0


async def test_one_that_has_not_started_yet_is_waited_for(world, autojump_clock: MockClock):
    """The members of a job do not start in the same moment: the first must not take it all."""
    async with world.running():
        await trio.sleep(29)
        assert (await world.admit(1, ALICE)).sm_percent == 30.0
        await trio.sleep(2)
        assert (await world.admit(2, BOB)).sm_percent == 45.0


async def test_one_that_comes_back_late_waits_for_the_next_start_of_another(world, autojump_clock: MockClock):
    async with world.running() as nursery:
        await trio.sleep(31)
        assert (await world.admit(1, ALICE)).sm_percent == 90.0
        late = Arrival(world, nursery, 2, BOB)
        await wait_all_tasks_blocked()
        assert late.told == ["other members hold all shares of its group"]
        world.book.leave(process(1))
        await wait_all_tasks_blocked()
        assert late.grant is not None
        assert late.grant.sm_percent == 45.0  # and as much is kept for the one that left this moment
        assert (await world.admit(3, ALICE)).sm_percent == 45.0


async def test_a_new_member_brings_a_share_for_one_that_waits(world, autojump_clock: MockClock):
    async with world.running() as nursery:
        await trio.sleep(31)
        assert (await world.admit(1, ALICE)).sm_percent == 90.0
        late = Arrival(world, nursery, 2, BOB)
        await wait_all_tasks_blocked()
        world.book.create(ROOT, spec(10, by_token(), group="replicas"))
        await wait_all_tasks_blocked()
        assert late.grant is not None
        assert held(world) <= 100.0


async def test_a_lease_that_ends_takes_its_share_along_and_no_more(world):
    """Its client has inherited: what it holds beyond its own stays the group's loss until it ends."""
    world.now += 31
    await world.admit(1, ALICE)
    world.book.release(1)
    with pytest.raises(NoRoom):
        world.book.create(ROOT, spec(11))
    world.book.create(ROOT, spec(10, by_token()))
    assert world.book._account.ledger.used[usage.Scope(usage.ScopeLevel.MACHINE, usage.AmountKind.SM, gpu=GPU_A)] == 100_000_000
    world.book.leave(process(1))
    world.now += 31
    assert (await world.admit(2, BOB)).sm_percent == 60.0
    world.book.create(ROOT, spec(30, by_token()))


async def test_groups_of_other_users_and_other_gpus_are_others(tmp_path):
    """A stranger who names his lease like a group inherits nothing from it."""
    world = World(tmp_path, AdmissionSettings(redistribute="group"))
    world.book.create(ROOT, spec(30, by_uid(ALICE), group="g"))
    world.book.create(BOB, spec(30, by_uid(BOB), group="g"))
    world.book.create(ROOT, spec(30, by_uid(CAROL), group="g", gpus=("0",)))
    for pid, uid in ((1, ALICE), (2, BOB), (3, CAROL)):
        assert (await world.admit(pid, uid)).sm_percent == 30.0


async def test_a_users_group_has_a_domain_of_that_user(tmp_path):
    world = World(tmp_path)
    world.book.create(ROOT, spec(30, by_uid(ALICE), group="g", domain=DomainPolicy.GROUP))
    world.book.create(BOB, spec(30, by_uid(BOB), group="g", domain=DomainPolicy.GROUP))
    assert (await world.admit(1, ALICE)).domain_key == "g"
    assert (await world.admit(2, BOB)).domain_key == "1001:g"


async def test_without_redistribution_a_share_is_the_leases(world):
    world.change(redistribute="off")
    world.now += 31
    assert (await world.admit(1, ALICE)).sm_percent == 30.0


async def test_what_was_dealt_is_not_dealt_again_when_dealing_is_turned_off(world):
    world.now += 31
    assert (await world.admit(1, ALICE)).sm_percent == 90.0
    world.change(redistribute="off")
    world.book.create(ROOT, spec(10, by_token(), group="replicas"))
    assert (await world.admit(2, BOB)).sm_percent == 10.0
    assert held(world) == 100.0


async def test_the_table_of_the_page(world, autojump_clock: MockClock):
    """The table is in docs/leases.md, "Groups"."""
    async with world.running() as nursery:
        await all_three(world)
        world.book.leave(process(1))
        await trio.sleep(31)
        for pid, uid in ((2, BOB), (3, CAROL)):
            world.book.leave(process(pid))
            assert (await world.admit(pid + 10, uid)).sm_percent == 45.0
        a = Arrival(world, nursery, 1, ALICE)
        await wait_all_tasks_blocked()
        assert a.grant is None
        world.book.leave(process(13))
        await wait_all_tasks_blocked()
        assert a.grant is not None
        assert a.grant.sm_percent == 30.0
        assert (await world.admit(23, CAROL)).sm_percent == 15.0


def test_a_group_is_no_larger_than_a_deal_can_look_at(tmp_path, monkeypatch):
    monkeypatch.setattr("mpsd.leases.rules.usage.GROUP_LEASES", 2)
    world = World(tmp_path, AdmissionSettings(redistribute="group"))
    for _ in range(2):
        world.book.create(ROOT, spec(1, group="g"))
    with pytest.raises(TooMany, match="group g"):
        world.book.create(ROOT, spec(1, group="g"))
    world.book.create(ROOT, spec(1, group="h"))


async def test_elastic_gives_batch_what_no_interactive_client_has(tmp_path, autojump_clock: MockClock):
    world = World(tmp_path, AdmissionSettings(redistribute="elastic", move_cost_seconds=1.0))
    world.book.create(ROOT, spec(50, by_uid(ALICE), group="g"))
    world.book.create(ROOT, spec(50, by_uid(BOB), group="g", level="batch"))
    await trio.sleep(31.0)
    batch = await world.admit(3, BOB)
    assert batch.sm_percent == 100.0
    world.book.leave(process(3))
    interactive = await world.admit(1, ALICE)
    assert interactive.sm_percent == 50.0
    assert held(world) <= 100.0
