"""Clients whose guards have faults without end: managed memory that the GPU uses too makes as many as its user likes."""

import os
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from mpsd.model.process import ProcessId
from mpsd.uvm.abi import EventKind, UvmEvent
from mpsd.uvm.client_watch import _KNOWN_SECONDS, _PAUSE_TIMES, Watch, WatchParts
from mpsd.uvm.space import Taken
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
from tests.unit.uvm.fake_clients import GPU, company, directly

TAKE_SECONDS, ALL_SECONDS = 0.006, 10.0  # 255 events with 64 guards took 6 ms (measured)
SERVED = UvmEvent(EventKind.GPU_FAULT, 1, "read", 1 << 40, 0, 0)


@dataclass
class Endless:
    """A queue that is never empty; to take its records takes time."""

    clock: trio.testing.MockClock
    descriptor: int
    taken: int = 0

    def fileno(self) -> int:
        return self.descriptor

    def take(self) -> Taken:
        self.taken += 1
        self.clock.jump(TAKE_SECONDS)
        return Taken((SERVED,), 0)


def ignore(*words: object) -> None: ...


@pytest.mark.parametrize("clients", [1, 48])
@pytest.mark.parametrize("guard", [range(1 << 30), range(1 << 40, 1 << 41)], ids=["beside the guards", "in a guard"])
async def test_those_of_one_user_take_a_tenth_of_the_event_loop(
    autojump_clock: trio.testing.MockClock, clients: int, guard: range
) -> None:
    """They took all of it.  Faults in a guard are published too, which takes time."""
    published: list[object] = []

    def publish(seen: object) -> None:
        published.append(seen)
        autojump_clock.jump(TAKE_SECONDS)

    around = WatchParts(ignore, ignore, ignore, INSPECTOR, publish, directly, directly, ignore, ignore)  # type: ignore[arg-type]
    queues = [Endless(autojump_clock, os.eventfd(1)) for _ in range(clients)]
    with trio.move_on_after(ALL_SECONDS):
        async with trio.open_nursery() as nursery:
            for pid, queue in enumerate(queues, 1):
                watch = Watch(ProcessId(pid, 1), "default", (GPU,), company, True, UvmSettings(), around)
                watch._guards.append(guard)
                nursery.start_soon(watch._listen, queue, trio.CancelScope())
    for queue in queues:
        os.close(queue.descriptor)
    assert bool(published) == (guard.start > 0)
    assert 0 < (sum(queue.taken for queue in queues) + len(published)) * TAKE_SECONDS <= ALL_SECONDS / _PAUSE_TIMES


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_where_no_look_completes_they_wait_without_taking_the_event_loop(autojump_clock: trio.testing.MockClock) -> None:
    """A process that has many UVM descriptors open is never complete.  200 listeners looked each millisecond, for 84 percent of
    the time of the event loop (measured)."""
    around = WatchParts(ignore, ignore, ignore, INSPECTOR, ignore, directly, directly, ignore, ignore)  # type: ignore[arg-type]
    queue, steps = Endless(autojump_clock, os.eventfd(1)), Steps()
    watch = Watch(ProcessId(1, 1), "default", (GPU,), company, True, UvmSettings(), around)
    trio.lowlevel.add_instrument(steps)
    with trio.move_on_after(ALL_SECONDS):
        await watch._listen(queue, trio.CancelScope())
    trio.lowlevel.remove_instrument(steps)
    os.close(queue.descriptor)
    assert queue.taken >= ALL_SECONDS / _KNOWN_SECONDS / 2
    assert steps.count < 10 * queue.taken
