"""Which promotions count, and which are tried again."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mpsd.errors import KeeperFailed, Stopping, UnusablePath
from mpsd.model.service import Cause, Order, Phase, ServiceSettings


async def test_too_many_promotions_in_a_row_wait(room, autojump_clock: MockClock):
    async with room.mpsd():
        for _ in range(4):  # the first one replaced no member
            await room.die(process := await room.serves("a"))
            room.vault.fenced(process)
        fifth = await room.member("a")
        assert (room.order(fifth), room.phase) == ("standby", Phase.IDLE)
        told = await room.failover.follow(1, fifth, room.told(fifth).serial, 100)
        assert (told.order, trio.current_time()) == (Order.SERVE, pytest.approx(60, abs=0.1))
        reasons = [told["why"] for told in room.topics("unserved")][-3:]
        too_many = "too many promotions within services.window_seconds: it is tried again when they are over"
        assert reasons == ["no process is left", "no standby is ready", too_many]


async def test_a_failover_and_a_rolling_change_leave_room_for_another_failover(room, autojump_clock: MockClock):
    async with room.mpsd():
        active, standby = await room.serves("a"), await room.member("b")
        await room.die(active)
        room.vault.fenced(active)
        room.serving(standby)
        for domain in ("c", "d", "e"):
            active, standby = standby, await room.member(domain)
            with trio.move_on_after(0):
                await room.failover.handover(1, standby.pid, 0)
            room.failover.yielded(1, room.vault.made[1].generation, active)
            room.serving(standby)
        next_ = await room.member("f", -1)
        await room.die(standby)
        room.vault.fenced(standby)
        assert room.order(next_) == "serve"


@pytest.mark.parametrize("refusal", [UnusablePath("the disk is full"), KeeperFailed("it is silent"), Stopping("it quits")])
async def test_what_the_vault_cannot_keep_costs_no_standby(room, autojump_clock: MockClock, refusal):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b"), await room.member("c")
        room.vault.refusal = refusal
        room.vault.close(first)
        await trio.sleep(0.5)
        for _ in range(5):
            assert (room.phase, room.order(second), room.order(third)) == (Phase.IDLE, "standby", "standby")
            assert room.view().protection == "no member serves: the vault could not store the next writer: mpsd tries again"
            room.vault.refusal = refusal
            await trio.sleep(1)
        room.vault.refusal = None
        await trio.sleep(1)
        assert (room.order(second), room.order(third)) == ("serve", "standby")
        room.serving(second)
        assert (room.view().last.cause, room.view().last.from_pid, room.ended) == (Cause.ENDED, first.pid, [])


@pytest.mark.parametrize("way", ["yielded", "leave"])
async def test_nobody_follows_one_that_has_done_the_work(room, autojump_clock: MockClock, way: str):
    """Until a new member joins: the work was not done, or more has come."""
    async with room.mpsd():
        first, second = await room.serves("a"), await room.member("b")
        room.failover.change(1, ServiceSettings(until_done=True))
        _stop(room, way, first)
        await trio.sleep(5)
        assert (room.phase, room.order(second)) == (Phase.IDLE, "standby")
        assert room.view().protection == "no member serves: its work is done"
        await room.member("c", is_ready=False)
        assert room.order(second) == "serve"


@pytest.mark.parametrize("way", ["yielded", "leave"])
async def test_without_an_end_whoever_stops_is_followed(room, autojump_clock: MockClock, way: str):
    async with room.mpsd():
        first, second = await room.serves("a"), await room.member("b")
        room.failover.change(1, ServiceSettings(until_done=True))
        room.failover.change(1, ServiceSettings())
        _stop(room, way, first)
        assert room.order(second) == "serve"


def _stop(room, way: str, process):
    if way == "leave":
        room.failover.leave(1, process)
    else:
        room.failover.yielded(1, room.vault.made[1].generation, process)


async def test_that_the_work_is_done_can_be_taken_back(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, second = await room.serves("a"), await room.member("b")
        room.failover.change(1, ServiceSettings(until_done=True))
        room.failover.leave(1, first)
        room.failover.change(1, ServiceSettings())
        assert room.order(second) == "serve"


@pytest.mark.parametrize("end", ["fault", "end", "handover"])
async def test_until_the_work_is_done_others_take_over_as_ever(room, autojump_clock: MockClock, end: str):
    async with room.mpsd():
        first, second = await room.serves("a"), await room.member("b")
        room.failover.change(1, ServiceSettings(until_done=True))
        if end == "handover":
            with trio.move_on_after(0):
                await room.failover.handover(1, second.pid, 0)
            room.failover.yielded(1, 1, first)
        elif end == "fault":
            room.failover.failed(1, first, "it could not go on")
            room.vault.fenced(first)
        else:
            await room.die(first)
            room.vault.fenced(first)
        assert room.order(second) == "serve"
