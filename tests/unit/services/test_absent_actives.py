"""mpsd is killed and started again, and the active does not join again: it hangs, or it is only late."""


import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import UnusablePath
from mpsd.model.service import Cause, MemberState, Phase, ServiceSettings
from tests.unit.services.kept_state import Kept

pytestmark = pytest.mark.usefixtures("own_descriptors")
GRACE = 10.0  # services.follow_grace


async def again(machine, process, heartbeat: float = 0.0) -> None:
    await machine.failover.join(1, process, 0, heartbeat)
    machine.failover.ready(1, process)


async def follows(machine, standby, seconds: float) -> None:
    """The standby asks for its task during these seconds."""
    with trio.move_on_after(seconds):
        while True:
            await machine.failover.follow(1, standby, machine.told(standby).serial, 60)


async def two(machine, heartbeat: float, rank: int = 0):
    """Return the active, a standby, and the active's forward state."""
    first = await machine.member("a", rank, heartbeat=heartbeat)
    machine.serving(first)
    return first, await machine.member("b", 1), Kept(machine, 1)


async def test_one_that_hangs_is_fenced_after_the_grace(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.4)
    async with machine.mpsd():
        await again(machine, standby)
        assert (machine.phase, machine.view().writer, machine.order(standby)) == (Phase.SERVING, first, "standby")
        await follows(machine, standby, GRACE - 1)
        assert (machine.ended, machine.phase) == ([], Phase.SERVING)
        await follows(machine, standby, 5)
        assert machine.ended == [first]
        assert machine.order(standby) == "standby"  # not before it is fenced
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"
        machine.serving(standby)
        assert (machine.view().last.cause, machine.view().generation) == (Cause.SILENT, 2)


async def test_one_that_publishes_is_left_alone_however_late_it_joins(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, state = await two(machine, 0.4, rank=3)
    async with machine.mpsd():
        await again(machine, standby)
        for _ in range(20):
            await follows(machine, standby, GRACE / 2)
            state.publish()
        assert (machine.ended, machine.phase) == ([], Phase.SERVING)
        await machine.failover.join(1, first, 3, 0.4)
        assert (machine.order(first), machine.view().generation) == ("serve", 1)
        assert {each.process: each.rank for each in machine.view().members} == {first: 3, standby: 0}


async def test_its_own_heartbeat_counts_from_its_return(machine, autojump_clock: MockClock):
    """It may have waited for mpsd in a call: what passed before it came back is not counted."""
    async with machine.mpsd():
        first, standby, state = await two(machine, 0.4)
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, GRACE - 2)
        await machine.failover.join(1, first, 0, 0.4)
        await trio.sleep(0.3)
        assert machine.phase is Phase.SERVING
        state.publish()
        await trio.sleep(0.3)
        assert machine.phase is Phase.SERVING
        await trio.sleep(0.6)
        assert machine.ended == [first]


async def test_alone_it_goes_on(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.4)
    async with machine.mpsd():
        await machine.failover.join(1, standby, 1, 0)  # it warms
        await trio.sleep(3 * GRACE)
        assert (machine.ended, machine.phase, machine.view().writer) == ([], Phase.SERVING, first)
        machine.failover.ready(1, standby)
        await trio.sleep(1)
        assert machine.ended == [first]


async def test_the_heartbeat_of_the_owner_counts_too(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        machine.failover.change(1, ServiceSettings(standbys=1, heartbeat_seconds=0.4))
        first, standby, _ = await two(machine, 0.0)
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, GRACE + 4)
        assert machine.ended == [first]


async def test_one_without_a_heartbeat_is_waited_for(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.0)
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, 10 * GRACE)
        assert (machine.ended, machine.view().writer, machine.order(standby)) == ([], first, "standby")


async def test_one_that_left_and_opened_the_arena_by_itself_is_not_ended(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a", heartbeat=0.4)
        machine.failover.leave(1, first)
        machine.vault.open_to_write(first)
    async with machine.mpsd():
        standby = await machine.member("b")
        await follows(machine, standby, 10 * GRACE)
        assert (machine.ended, machine.view().writer, machine.order(standby)) == ([], first, "standby")


async def test_it_is_known_after_another_restart(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.4)
    for _ in range(2):
        async with machine.mpsd():
            await again(machine, standby)
            await follows(machine, standby, 2)
            assert machine.ended == []
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, GRACE + 4)
        assert machine.ended == [first]


async def test_it_is_known_though_the_standby_left_and_joined_again(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.4)
    async with machine.mpsd():
        await machine.failover.join(1, standby, 1, 0)
        machine.failover.leave(1, standby)
        await again(machine, standby)
        await follows(machine, standby, GRACE + 4)
        assert machine.ended == [first]


async def test_a_generation_that_grew_in_its_term_is_stored(machine, autojump_clock: MockClock):
    """As after the death of the vault's keeper."""
    async with machine.mpsd():
        first, standby, state = await two(machine, 0.4)
        machine.vault.become("state", replace(machine.vault.made[1], generation=2))
        state.generation = 2
        state.keep()
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, GRACE + 4)
        assert machine.ended == [first]


async def test_a_full_disk_costs_only_what_was_to_be_stored(machine, autojump_clock: MockClock, monkeypatch):
    async with machine.mpsd():
        def refuse(*_: object) -> None:
            raise UnusablePath("the disk is full")

        monkeypatch.setattr(machine.coordinator.store, "save_active", refuse)
        first, standby, _ = await two(machine, 0.4)
        assert machine.phase is Phase.SERVING
    async with machine.mpsd():
        await again(machine, standby)
        await follows(machine, standby, 10 * GRACE)
        assert (machine.ended, machine.view().writer) == ([], first)


async def test_one_whose_service_has_gone_is_forgotten(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await two(machine, 0.4)
        assert machine.coordinator.store.actives([1])
        machine.vault.become("removed", machine.vault.made[1])
        assert not machine.coordinator.store.actives([1])


@pytest.mark.parametrize("is_dead", [False, True])
async def test_one_that_has_ended_is_waited_for_until_it_is_fenced(machine, is_dead, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby, _ = await two(machine, 0.4)
    if is_dead:
        machine.end(first)
    async with machine.mpsd():
        await again(machine, standby)
        if not is_dead:
            await machine.die(first)
        assert (machine.order(standby), machine.vault.hurried[-1]) == ("standby", first)
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"
        assert all(each.standing is MemberState.READY for each in machine.view().members)
