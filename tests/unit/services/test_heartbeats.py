"""An active that makes no progress is silent; its forward state shows that."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mpsd.model.arena import Arena
from mpsd.model.service import Cause, MemberState, Phase, ServiceSettings
from mpsd.services.heartbeats import _read_lines
from tests.unit.services.kept_state import Kept

pytestmark = pytest.mark.usefixtures("own_descriptors")


async def test_one_that_stands_still_is_ended_and_followed(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a", heartbeat=0.4)
        standby = await machine.member("b")
        state = Kept(machine, 1)
        for _ in range(20):
            await trio.sleep(0.3)
            state.publish()
        assert machine.phase is Phase.SERVING
        await trio.sleep(0.6)
        assert (machine.ended, machine.order(first)) == ([first], "leave")
        machine.vault.fenced(first)
        machine.serving(standby)
        last = machine.view().last
        assert (last.cause, last.detect_ms) == (Cause.SILENT, pytest.approx(400, abs=101))


async def test_alone_it_goes_on_and_is_heard_of_again(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a", heartbeat=0.4)
        state = Kept(machine, 1)
        await trio.sleep(1)
        assert (machine.view().members[0].standing, machine.order(first)) == (MemberState.SILENT, "serve")
        state.publish()
        await trio.sleep(0.11)
        assert machine.view().members[0].standing is MemberState.READY
        await trio.sleep(1)
        await machine.member("b")
        assert machine.phase is Phase.FENCING


async def test_its_owner_asks_for_it_and_later_for_none(machine, autojump_clock: MockClock):
    """Silent for ever, it would be ended by the next standby that is ready, though it is well."""
    async with machine.mpsd():
        await machine.serves("a")
        Kept(machine, 1)
        await trio.sleep(2)
        assert machine.view().members[0].standing is MemberState.READY
        machine.failover.change(1, ServiceSettings(heartbeat_seconds=0.5))
        await trio.sleep(1)
        assert machine.view().members[0].standing is MemberState.SILENT
        machine.failover.change(1, ServiceSettings())
        await trio.sleep(0.1)
        assert machine.view().members[0].standing is MemberState.READY
        await machine.member("b")
        assert (machine.phase, machine.ended) == (Phase.SERVING, [])


async def test_what_the_one_before_left_is_no_heartbeat(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a", heartbeat=0.4)
        second = await machine.member("b", heartbeat=0.4)
        Kept(machine, 1)
        await trio.sleep(0.2)
        machine.vault.close(first)
        machine.serving(second)
        await machine.member("c")
        await trio.sleep(2)
        assert (machine.phase, machine.ended) == (Phase.SERVING, [])


async def test_nobody_is_silent_because_the_state_cannot_be_read(machine, autojump_clock: MockClock, monkeypatch):
    async with machine.mpsd():
        await machine.serves("a", heartbeat=0.4)
        state = Kept(machine, 1)
        os.pwrite(state.descriptor, b"nonsense", 0)
        await trio.sleep(2)
        assert machine.view().members[0].standing is MemberState.READY


async def test_a_machine_that_stood_still_makes_nobody_silent(machine, autojump_clock: MockClock):
    """The whole machine: mpsd may check before the active has run again."""
    async with machine.mpsd():
        await machine.serves("a", heartbeat=0.4)
        Kept(machine, 1)
        await trio.sleep(0.15)
        autojump_clock.jump(3600)
        await trio.sleep(0.05)
        assert machine.view().members[0].standing is MemberState.READY
        await trio.sleep(0.4)
        assert machine.view().members[0].standing is MemberState.SILENT


async def test_a_state_that_is_slow_to_come_holds_up_nobody_else(machine, autojump_clock: MockClock, monkeypatch):
    found, asked = machine.vault.state_descriptor, []

    async def state_descriptor(arena_id: int) -> int:
        asked.append(arena_id)
        if len(asked) == 1:
            await trio.sleep(10)
        return int(await found(arena_id))

    monkeypatch.setattr(machine.vault, "state_descriptor", state_descriptor)
    async with machine.mpsd():
        await machine.serves("a", heartbeat=0.4)
        Kept(machine, 1)
        await trio.sleep(5)
        assert asked == [1]  # not again and again
        await trio.sleep(6)
        assert machine.view().members[0].standing is MemberState.SILENT


async def test_a_state_in_swap_is_read_once_at_a_time_and_stays_open_until_then(
    machine, autojump_clock: MockClock, monkeypatch
) -> None:
    """mpsd read it on its event loop, and waited there for the page: one user's states kept everybody waiting."""
    read, reading, has_page = machine.vault.read_state, [], trio.Event()

    async def read_state(arena: Arena, how: Callable[..., Any], *args: Any) -> Any:
        if how is _read_lines:
            reading.extend(args[0])
            await has_page.wait()
        return await read(arena, how, *args)

    monkeypatch.setattr(machine.vault, "read_state", read_state)
    async with machine.mpsd():
        await machine.serves("a", heartbeat=0.4)
        state = Kept(machine, 1)
        await trio.sleep(5)
        [descriptor] = reading
        assert machine.view().members[0].standing is MemberState.READY
        state.keep()  # another one
        await trio.sleep(1)
        os.fstat(descriptor)
        has_page.set()
        await trio.sleep(1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
