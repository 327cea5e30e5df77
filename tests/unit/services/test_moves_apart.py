"""One move does not wait for another."""

import pytest
import trio
from trio.testing import MockClock

from mpsd.model.process import ProcessId
from mpsd.model.service import MoveState, Order
from mpsd.services.move_record import MoveRecord
from tests.unit.services.fake_machine import FakeMachine
from tests.unit.services.test_moves import LAST, asked_to_yield
from tests.unit.services.test_moves import machine as machine
from tests.unit.services.test_replicas import HERE, THERE, ask


async def test_a_process_that_takes_long_to_end_delays_no_other_move(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def hangs(process: ProcessId) -> None:
        ended.append(process)
        await trio.sleep(3600)

    monkeypatch.setattr(machine, "_end", hangs)
    async with machine.mpsd():
        active, far = await asked_to_yield(machine)
        machine.failover.yielded(1, 1, active, LAST)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        await trio.sleep(6)
        assert ended == [far]
        other, now = machine.coordinator.record(machine.vault.create("other").id), trio.current_time()
        other.move = MoveRecord(HERE, THERE, active, far, 99, now, now, now + 1)
        await trio.sleep(3)
        assert other.move.state is MoveState.CANCELLED
