"""mpsd is killed and started again: the active still serves, no other member begins, and requests are remembered."""

import pytest
import trio
from trio.testing import MockClock

from mpsd.errors import NotAllowed
from mpsd.model.service import Order, Phase, ServiceSettings


async def again(room, *members, ready=True):
    """They join the mpsd that is there now, in this order."""
    for each in members:
        await room.failover.join(1, each, 0, 0)
        if ready:
            room.failover.ready(1, each)


async def test_who_served_serves(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        before = room.told(first).serial
    async with room.mpsd():
        await again(room, standby)
        assert (room.order(standby), room.view().writer, room.phase) == ("standby", first, Phase.IDLE)
        told = await room.failover.join(1, first, 0, 0)
        assert (told.order, told.generation) == (Order.SERVE, 1)
        assert told.serial > before
        assert room.phase is Phase.SERVING


async def test_nobody_begins_before_the_one_that_served_is_fenced(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
    room.end(first)
    async with room.mpsd():
        await again(room, standby)
        assert (room.order(standby), room.vault.hurried[-1]) == ("standby", first)
        await trio.sleep(5)
        assert room.order(standby) == "standby"
        room.vault.fenced(first)
        assert room.order(standby) == "serve"


async def test_who_comes_first_is_waited_for_a_while(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b", 1), await room.member("c", 2)
    room.end(first)
    async with room.mpsd():
        room.vault.fenced(first)
        await room.failover.join(1, third, 2, 0)
        room.failover.ready(1, third)
        await trio.sleep(3)
        assert room.order(third) == "standby"
        await room.failover.join(1, second, 1, 0)
        room.failover.ready(1, second)
        assert (room.order(second), room.order(third)) == ("serve", "standby")


async def test_who_does_not_come_is_not_waited_for_any_longer(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        await room.member("b", 1)
        third = await room.member("c", 2)
    room.end(first)
    async with room.mpsd():
        room.vault.fenced(first)
        await again(room, third)
        told = await room.failover.follow(1, third, room.told(third).serial, 60)
        assert (told.order, trio.current_time()) == (Order.SERVE, pytest.approx(10, abs=0.1))


async def test_who_does_not_join_again_is_told_so(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
    async with room.mpsd():
        with pytest.raises(NotAllowed, match="has not joined"):
            await room.failover.follow(1, first, 0, 1)


async def test_a_handover_that_was_cut_off_is_none(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        with trio.move_on_after(0):
            await room.failover.handover(1, None, 0)
        assert room.order(first) == "yield"
    async with room.mpsd():
        await again(room, first, standby)
        assert (room.order(first), room.order(standby)) == ("serve", "standby")


async def test_killed_between_the_kill_and_the_promotion(room, autojump_clock: MockClock, monkeypatch):
    """The next mpsd knows nothing of the fault, and waits until the process has gone."""
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        monkeypatch.setattr(room.desk, "_promote", lambda entry, process: None)
        room.tear_down("a")
        room.xid(43, "a")
        assert room.processes[first].was_killed
    async with room.mpsd():
        await again(room, standby)
        assert room.order(standby) == "standby"
        room.vault.fenced(first)
        assert (room.order(standby), room.view().generation) == ("serve", 2)


async def test_killed_right_after_the_promotion(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        room.tear_down("a")
        room.xid(43, "a")
        assert room.processes[first].was_killed
    async with room.mpsd():
        await again(room, standby)
        assert (room.order(standby), room.view().generation) == ("serve", 2)


async def test_what_its_owner_asked_for_is_kept(room, autojump_clock: MockClock):
    asked = ServiceSettings(3, 25.0, 1 << 30, 0.5)
    async with room.mpsd():
        room.failover.change(1, asked)
    async with room.mpsd():
        assert room.view().settings == asked
        room.vault.made.pop(1)
        room.vault.become("removed", room.desk.entries[1].arena)
        room.vault.made.pop(1)
    async with room.mpsd():
        assert room.failover.services() == []


async def test_what_was_asked_for_an_arena_that_has_gone_meanwhile_is_forgotten(room, autojump_clock: MockClock):
    async with room.mpsd():
        room.failover.change(1, ServiceSettings(3))
    arena = room.vault.made.pop(1)
    async with room.mpsd():
        assert room.failover.services() == []
    room.vault.made[1] = arena
    async with room.mpsd():
        assert room.failover.services() == []


async def test_what_was_asked_for_keeps_others_out_while_its_members_come_back(room, autojump_clock: MockClock):
    async with room.mpsd():
        room.failover.change(1, ServiceSettings(standbys=2))
        assert room.desk.is_served(1)  # mpsd has only begun
    async with room.mpsd():
        assert room.desk.is_served(1)
        await trio.sleep(room.settings.follow_grace + 1)
        assert not room.desk.is_served(1)
