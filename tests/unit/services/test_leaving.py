"""An active that is asked to leave, as its starter does where no second member fits."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mpsd.errors import ArenaBusy, BadRequest
from mpsd.model.service import Cause, Order, Phase


async def test_an_active_that_is_to_leave_ends_its_step_first_and_does_not_come_back(machine, autojump_clock: MockClock):
    """No standby need be ready."""
    async with machine.mpsd():
        first = await machine.serves("a")
        done = []

        async def hand_over() -> None:
            done.append(await machine.failover.handover(1, None, 30, first.pid))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hand_over)
            await trio.testing.wait_all_tasks_blocked()
            assert machine.order(first) == "yield"
            await trio.sleep(0.5)
            told = machine.failover.yielded(1, 1, first)
        assert (told.order, told.why) == (Order.LEAVE, "it was asked to leave")
        assert (done[0].from_pid, done[0].to_pid, done[0].seconds) == (first.pid, None, pytest.approx(0.5, abs=0.01))
        assert (machine.phase, machine.view().members) == (Phase.IDLE, ())
        machine.serving(await machine.member("a"))
        assert machine.view().last.cause is Cause.ENDED


async def test_an_active_that_does_not_yield_in_time_goes_on(machine, autojump_clock: MockClock):
    """Then its starter ends it by a stop."""
    async with machine.mpsd():
        first = await machine.serves("a")
        with pytest.raises(ArenaBusy, match="continues"):
            await machine.failover.handover(1, None, 30, first.pid)
        assert machine.order(first) == "serve"
        assert trio.current_time() == pytest.approx(4, abs=0.1)


async def test_only_the_active_can_be_asked_to_leave(machine, autojump_clock: MockClock):
    """A starter may know only the last active: by now another member may serve."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        with pytest.raises(BadRequest, match=f"{standby.pid} is not the active of service llm: pid {first.pid} is"):
            await machine.failover.handover(1, None, 30, standby.pid)
        with pytest.raises(BadRequest, match="both given"):
            await machine.failover.handover(1, standby.pid, 30, first.pid)
        with pytest.raises(ArenaBusy, match=f"{first.pid} is not a ready standby"):  # it is not taken for one that is to leave
            await machine.failover.handover(1, first.pid, 30)
        assert machine.order(first) == "serve"
