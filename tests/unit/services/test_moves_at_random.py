"""Moves at random, between faults, deaths, handovers, lost images, and mpsd killed in between.

The replica never serves while a member of the service on the first GPU may write (fake_machine.py, replace and promote), nor
without the last barrier; in the end one member serves, on one of the two GPUs.
"""

import random
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import MpsdError
from mpsd.model.process import ProcessId
from mpsd.model.service import Instruction, LastRecord, Order, Phase, ReplicaReport
from tests.seeds import seeds
from tests.unit.services.test_at_random import World, calm, live
from tests.unit.services.test_replicas import THERE

SEEDS = seeds(4, 56)


class Moving(World):
    """last: the record of the last barrier that was reported; every image has a later one than that before.  moves: begun."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        super().__init__(path, chance)
        self.vault.made[1] = replace(self.vault.made[1], layout_hash="there is one")
        arena = self.vault.create("llm.replica")
        self.vault.made[arena.id] = replace(arena, gpu=THERE)
        self.far = self._keeper()
        self.sequence, self.has, self.moves, self.is_moved = 1, 0, 0, False

    def _keeper(self) -> ProcessId:
        process = self.process("far")
        self.vault.open_to_write(process, 2)
        self.processes[process].may_write = False  # in the arena of the service
        return process

    def yields(self, process: ProcessId, told: Instruction) -> None:
        if not told.is_moving or self.chance.random() < 0.1:
            self.failover.yielded(1, told.generation, process)
            return
        self.sequence += 1
        why = "the imager has ended" if self.chance.random() < 0.2 else ""
        self.failover.yielded(1, told.generation, process, LastRecord(1, self.sequence, why))

    async def replicate(self) -> None:
        """Let the replica report, and perhaps die."""
        if not self.processes[self.far].is_alive:
            if self.vault.made[2].writer is None:
                self.far = self._keeper()
            return
        if self.chance.random() < 0.05:
            self.end(self.far)
            return
        before = self.has
        self.has = self.sequence if self.chance.random() < 0.7 else self.has
        report = ReplicaReport(trio.current_time(), 1, self.has, 0, 60.0)
        of, generation = self.vault.made[1], self.vault.made[2].generation
        is_stopped = of.writer is None
        with suppress(MpsdError):
            told = await self.failover.replicas.follow(2, generation, self.far, of, report, 0.0)
            if told.order is Order.SERVE:
                assert is_stopped, "a process writes the arena on the first GPU"
                assert self.has == self.sequence >= before, "a barrier is lost"
                self.is_moved = True

    def begin_move(self) -> None:
        with suppress(MpsdError):
            self.failover.move(1, THERE, self.chance.choice([0.1, 5.0, 60.0]))
            self.moves += 1


async def live_and_move(machine: Moving, steps: int) -> None:
    for _ in range(steps):
        await live(machine, 1)
        if machine.chance.random() < 0.3:
            machine.begin_move()
        for _ in range(machine.chance.randrange(4)):
            await machine.replicate()
            if machine.is_moved:
                return
            await trio.sleep(machine.chance.choice([0.005, 0.05]))


async def end(machine: Moving) -> None:
    if machine.is_moved:
        await machine.failover.join(2, machine.far, 0, 0)
        machine.failover.serving(2, machine.vault.made[2].generation, machine.far)
        assert machine.view_of(2).phase is Phase.SERVING
    else:
        await calm(machine)


@pytest.mark.parametrize("seed", [*SEEDS[:4], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[4:])])
async def test_a_service_is_on_one_gpu_or_on_the_other(seed: int, tmp_path: Path, autojump_clock: MockClock) -> None:
    machine = Moving(tmp_path, random.Random(seed))
    for _ in range(4):  # lives of mpsd
        async with machine.mpsd():
            await live_and_move(machine, 30)
            if machine.is_moved:
                await end(machine)
                return
    async with machine.mpsd():
        await end(machine)
