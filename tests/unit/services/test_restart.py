"""mpsd is killed and started again: the active still serves, no other member begins, and requests are remembered."""

import pytest
import trio
from trio.testing import MockClock

from mpsd.errors import NotAllowed
from mpsd.model.service import Order, Phase, ServiceSettings


async def again(machine, *members):
    """They join the mpsd that is there now, in this order."""
    for each in members:
        await machine.failover.join(1, each, 0, 0)
        machine.failover.ready(1, each)


async def test_who_served_serves(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        before = machine.told(first).serial
    async with machine.mpsd():
        await again(machine, standby)
        assert (machine.order(standby), machine.view().writer, machine.phase) == ("standby", first, Phase.IDLE)
        told = await machine.failover.join(1, first, 0, 0)
        assert (told.order, told.generation) == (Order.SERVE, 1)
        assert told.serial > before
        assert machine.phase is Phase.SERVING


async def test_nobody_begins_before_the_one_that_served_is_fenced(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
    machine.end(first)
    async with machine.mpsd():
        await again(machine, standby)
        assert (machine.order(standby), machine.vault.hurried[-1]) == ("standby", first)
        await trio.sleep(5)
        assert machine.order(standby) == "standby"
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"


async def test_who_comes_first_is_waited_for_a_while(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b", 1), await machine.member("c", 2)
    machine.end(first)
    async with machine.mpsd():
        machine.vault.fenced(first)
        await machine.failover.join(1, third, 2, 0)
        machine.failover.ready(1, third)
        await trio.sleep(3)
        assert machine.order(third) == "standby"
        await machine.failover.join(1, second, 1, 0)
        machine.failover.ready(1, second)
        assert (machine.order(second), machine.order(third)) == ("serve", "standby")


async def test_who_does_not_come_is_not_waited_for_any_longer(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        await machine.member("b", 1)
        third = await machine.member("c", 2)
    machine.end(first)
    async with machine.mpsd():
        machine.vault.fenced(first)
        await again(machine, third)
        told = await machine.failover.follow(1, third, machine.told(third).serial, 60)
        assert (told.order, trio.current_time()) == (Order.SERVE, pytest.approx(10, abs=0.1))


async def test_who_does_not_join_again_is_told_so(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
    async with machine.mpsd():
        with pytest.raises(NotAllowed, match="has not joined"):
            await machine.failover.follow(1, first, 0, 1)


async def test_a_handover_that_was_cut_off_is_none(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        with trio.move_on_after(0):
            await machine.failover.handover(1, None, 0)
        assert machine.order(first) == "yield"
    async with machine.mpsd():
        await again(machine, first, standby)
        assert (machine.order(first), machine.order(standby)) == ("serve", "standby")


async def test_killed_between_the_kill_and_the_promotion(machine, autojump_clock: MockClock, monkeypatch):
    """The next mpsd knows nothing of the fault, and waits until the process has gone."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        monkeypatch.setattr(machine.coordinator, "_promote", lambda record, process: None)
        machine.tear_down("a")
        machine.xid(43, "a")
        assert machine.processes[first].was_killed
    async with machine.mpsd():
        await again(machine, standby)
        assert machine.order(standby) == "standby"
        machine.vault.fenced(first)
        assert (machine.order(standby), machine.view().generation) == ("serve", 2)


async def test_killed_right_after_the_promotion(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.tear_down("a")
        machine.xid(43, "a")
        assert machine.processes[first].was_killed
    async with machine.mpsd():
        await again(machine, standby)
        assert (machine.order(standby), machine.view().generation) == ("serve", 2)


async def test_what_its_owner_asked_for_is_kept(machine, autojump_clock: MockClock):
    asked = ServiceSettings(3, 25.0, 1 << 30, 0.5)
    async with machine.mpsd():
        machine.failover.change(1, asked)
    async with machine.mpsd():
        assert machine.view().settings == asked
        machine.vault.made.pop(1)
        machine.vault.become("removed", machine.coordinator.records[1].arena)
        machine.vault.made.pop(1)
    async with machine.mpsd():
        assert machine.failover.services() == []


async def test_what_was_asked_for_an_arena_that_has_gone_meanwhile_is_forgotten(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        machine.failover.change(1, ServiceSettings(3))
    arena = machine.vault.made.pop(1)
    async with machine.mpsd():
        assert machine.failover.services() == []
    machine.vault.made[1] = arena
    async with machine.mpsd():
        assert machine.failover.services() == []


async def test_what_was_asked_for_keeps_others_out_while_its_members_come_back(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        machine.failover.change(1, ServiceSettings(standbys=2))
        assert machine.registry.is_served(1)  # mpsd has only begun
    async with machine.mpsd():
        assert machine.registry.is_served(1)
        await trio.sleep(machine.settings.follow_grace + 1)
        assert not machine.registry.is_served(1)
