"""One move does not wait for another, nor for a disk."""

import errno
import os

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs
from trio.testing import MockClock

from mpsd.errors import MpsdError, NoRoom, UnusablePath
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import MoveState, Order, ServiceSettings
from mpsd.services.move_record import MoveRecord
from tests.unit.services.fake_machine import FakeMachine
from tests.unit.services.test_moves import LAST, asked_to_yield, move, stopped
from tests.unit.services.test_moves import machine as machine
from tests.unit.services.test_replicas import HERE, REPORT, THERE, ask, keep


async def test_a_process_that_takes_long_to_end_delays_no_other_move(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def hangs(process: ProcessId, uid: int | None) -> None:
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


async def test_a_process_that_cannot_be_ended_ends_no_other_move(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error but a refusal of mpsd's own ended mpsd."""

    async def fail(process: ProcessId) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(machine, "_end", fail)
    async with machine.mpsd():
        _, far = await stopped(machine)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        with capture_logs() as logs:
            await trio.sleep(6)
        assert [entry["pid"] for entry in logs if entry["event"] == "service.bug"] == [far.pid]
        assert move(machine, 2).state is MoveState.CANCELLED


async def test_a_full_disk_costs_a_moved_service_neither_its_move_nor_its_settings(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vault has stored the replacement: what follows is bookkeeping."""

    def full(*_: object) -> None:
        raise UnusablePath("the disk is full")

    async with machine.mpsd():
        active, far = await asked_to_yield(machine)
        machine.failover.change(1, ServiceSettings(standbys=3, until_done=True))
        machine.failover.yielded(1, 1, active, LAST)
        monkeypatch.setattr(machine.coordinator.store, "save", full)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        assert machine.order(active) == "leave"
        assert machine.failover.settings(2) == ServiceSettings(standbys=3, until_done=True)
        assert machine.coordinator.records[2].service.until_done
        assert move(machine, 2).state is MoveState.HANDING
        assert len(machine.topics("moved")) == 1
        await trio.sleep(1)
        assert not machine.topics("unmoved")


async def test_another_replica_on_that_gpu_is_not_the_one_that_is_moved_to(
    machine: FakeMachine, autojump_clock: MockClock
) -> None:
    """Its process was started again: it knows nothing of the images that count, and mpsd would wait for the one before."""
    async with machine.mpsd():
        _, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.failover.move(1, THERE, 60.0)
        await machine.die(far)
        machine.vault.fenced(far)
        process, arena = machine.process("again"), machine.vault.create("llm.replica-2")
        machine.vault.made[arena.id] = replace(arena, gpu=THERE)
        machine.vault.open_to_write(process, arena.id)
        await machine.failover.replicas.follow(arena.id, 1, process, machine.vault.made[1], REPORT, 0.0)
        await trio.sleep(2)
        assert move(machine).why == f"pid {far.pid}, which kept the replica, has ended"


class Killed(Exception):
    """mpsd ends here."""


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_the_settings_outlive_an_mpsd_that_dies_as_the_replica_replaces_the_arena(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """The vault had the new arena, and the settings were still those of the old one: the service had none."""
    settings, do_replace = ServiceSettings(standbys=3, memory_bytes=1 << 30), machine.vault.replace

    def dies(*asked: object) -> tuple[Arena, Arena]:
        if is_replaced:
            do_replace(*asked)  # type: ignore[arg-type]
        raise Killed

    async with machine.mpsd():
        _, far = await stopped(machine)
        machine.failover.change(1, settings)
        monkeypatch.setattr(machine.vault, "replace", dies)
        with pytest.raises(Killed):
            await ask(machine, far, sequence=7)
    async with machine.mpsd():
        assert machine.failover.settings(2 if is_replaced else 1) == settings


async def test_settings_are_stored_for_no_replica_that_does_not_replace_the_arena(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> tuple[Arena, Arena]:
        raise NoRoom("the disk is full")

    async with machine.mpsd():
        _, far = await stopped(machine)
        machine.failover.change(1, ServiceSettings(standbys=3))
        monkeypatch.setattr(machine.vault, "replace", full)
        with pytest.raises(MpsdError, match="the disk is full"):
            await ask(machine, far, sequence=7)
    async with machine.mpsd():
        assert 2 not in machine.coordinator.records


async def test_the_last_report_of_the_replica_waits_for_no_keeper(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service stands still meanwhile, and what the keeper would say is known."""

    async def never(_arena: int) -> int:
        await trio.sleep_forever()
        return -1

    async with machine.mpsd():
        _, far = await stopped(machine)
        monkeypatch.setattr(machine.vault, "state_descriptor", never)
        with trio.fail_after(60.0):
            told = await ask(machine, far, sequence=7)
        assert (told.order, told.steps, told.is_moving) == (Order.SERVE, 0, True)
