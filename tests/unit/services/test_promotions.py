"""Which promotions count, and which are tried again."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mpsd.errors import KeeperFailed, Stopping, UnusablePath
from mpsd.model.service import Cause, Order, Phase, ServiceSettings


async def test_too_many_promotions_in_a_row_wait(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        for _ in range(4):  # the first one replaced no member
            await machine.die(process := await machine.serves("a"))
            machine.vault.fenced(process)
        fifth = await machine.member("a")
        assert (machine.order(fifth), machine.phase) == ("standby", Phase.IDLE)
        told = await machine.failover.follow(1, fifth, machine.told(fifth).serial, 100)
        assert (told.order, trio.current_time()) == (Order.SERVE, pytest.approx(60, abs=0.1))
        reasons = [told["why"] for told in machine.topics("unserved")][-3:]
        too_many = "too many promotions within services.window_seconds: it is tried again when they are over"
        assert reasons == ["no process is left", "no standby is ready", too_many]


async def test_a_failover_and_a_rolling_change_leave_room_for_another_failover(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, standby = await machine.serves("a"), await machine.member("b")
        await machine.die(active)
        machine.vault.fenced(active)
        machine.serving(standby)
        for domain in ("c", "d", "e"):
            active, standby = standby, await machine.member(domain)
            with trio.move_on_after(0):
                await machine.failover.handover(1, standby.pid, 0)
            machine.failover.yielded(1, machine.vault.made[1].generation, active)
            machine.serving(standby)
        next_ = await machine.member("f", -1)
        await machine.die(standby)
        machine.vault.fenced(standby)
        assert machine.order(next_) == "serve"


@pytest.mark.parametrize("refusal", [UnusablePath("the disk is full"), KeeperFailed("it is silent"), Stopping("it quits")])
async def test_what_the_vault_cannot_keep_costs_no_standby(machine, autojump_clock: MockClock, refusal):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b"), await machine.member("c")
        machine.vault.refusal = refusal
        machine.vault.close(first)
        await trio.sleep(0.5)
        for _ in range(5):
            assert (machine.phase, machine.order(second), machine.order(third)) == (Phase.IDLE, "standby", "standby")
            assert machine.view().protection == "no member serves: the vault could not store the next writer: mpsd tries again"
            machine.vault.refusal = refusal
            await trio.sleep(1)
        machine.vault.refusal = None
        await trio.sleep(1)
        assert (machine.order(second), machine.order(third)) == ("serve", "standby")
        machine.serving(second)
        assert (machine.view().last.cause, machine.view().last.from_pid, machine.ended) == (Cause.ENDED, first.pid, [])


@pytest.mark.parametrize("way", ["yielded", "leave"])
async def test_nobody_follows_one_that_has_done_the_work(machine, autojump_clock: MockClock, way: str):
    """Until a new member joins: the work was not done, or more has come."""
    async with machine.mpsd():
        first, second = await machine.serves("a"), await machine.member("b")
        machine.failover.change(1, ServiceSettings(until_done=True))
        _stop(machine, way, first)
        await trio.sleep(5)
        assert (machine.phase, machine.order(second)) == (Phase.IDLE, "standby")
        assert machine.view().protection == "no member serves: its work is done"
        await machine.member("c", is_ready=False)
        assert machine.order(second) == "serve"


@pytest.mark.parametrize("way", ["yielded", "leave"])
async def test_without_an_end_whoever_stops_is_followed(machine, autojump_clock: MockClock, way: str):
    async with machine.mpsd():
        first, second = await machine.serves("a"), await machine.member("b")
        machine.failover.change(1, ServiceSettings(until_done=True))
        machine.failover.change(1, ServiceSettings())
        _stop(machine, way, first)
        assert machine.order(second) == "serve"


def _stop(machine, way: str, process):
    if way == "leave":
        machine.failover.leave(1, process)
    else:
        machine.failover.yielded(1, machine.vault.made[1].generation, process)


async def test_that_the_work_is_done_can_be_taken_back(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, second = await machine.serves("a"), await machine.member("b")
        machine.failover.change(1, ServiceSettings(until_done=True))
        machine.failover.leave(1, first)
        machine.failover.change(1, ServiceSettings())
        assert machine.order(second) == "serve"


@pytest.mark.parametrize("end", ["fault", "end", "handover"])
async def test_until_the_work_is_done_others_take_over_as_ever(machine, autojump_clock: MockClock, end: str):
    async with machine.mpsd():
        first, second = await machine.serves("a"), await machine.member("b")
        machine.failover.change(1, ServiceSettings(until_done=True))
        if end == "handover":
            with trio.move_on_after(0):
                await machine.failover.handover(1, second.pid, 0)
            machine.failover.yielded(1, 1, first)
        elif end == "fault":
            machine.failover.failed(1, first, "it could not go on")
            machine.vault.fenced(first)
        else:
            await machine.die(first)
            machine.vault.fenced(first)
        assert machine.order(second) == "serve"
