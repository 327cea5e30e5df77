"""A pool of three elastic services on the fake machine, whose load a test sets."""

import os
import struct

import trio
from msgspec.structs import replace

from mpsd.model.process import ProcessId
from mpsd.model.service import Elasticity, ServiceSettings
from mpsd.wire.forward_state import CONTROL, CONTROL_AT, HEAD, MAGIC

CHAT, FIRST, SECOND = 1, 2, 3
LEVELS = {CHAT: Elasticity.INTERACTIVE, FIRST: Elasticity.BATCH, SECOND: Elasticity.BATCH}


class Load:
    """Three elastic services with 33 % each, and how busy each active is, from now on."""

    def __init__(self, machine) -> None:
        self.machine, self.busy = machine, dict.fromkeys(LEVELS, 1.0)
        self.worked_ns, self.states, self.n = dict.fromkeys(LEVELS, 0), {}, 0

    async def begin(self) -> None:
        for arena_id, level in LEVELS.items():
            self.machine.failover.change(arena_id, ServiceSettings(standbys=0, sm_percent=33.0, elastic=level))
            await self.serve(arena_id)

    def change(self, arena_id: int, **settings: object) -> None:
        self.machine.failover.change(arena_id, replace(self.machine.failover.settings(arena_id), **settings))

    async def carry_out(self) -> None:
        """Move all services to their last shares, as their starters do."""
        for arena_id in LEVELS:
            await self.serve(arena_id)

    async def stand_by(self, arena_id: int) -> ProcessId:
        """Start another process, which could serve the arena."""
        machine = self.machine
        process = machine.process(f"{arena_id}{len(machine.processes)}")
        machine.vault.open(process, arena_id)
        await machine.failover.join(arena_id, process, 0, 0.0)
        machine.failover.ready(arena_id, process)
        return process

    async def join_again(self) -> None:
        """After a restart of mpsd."""
        for arena_id in LEVELS:
            arena = self.machine.vault.made[arena_id]
            await self.machine.failover.join(arena_id, arena.writer, 0, 0.0)
            self.machine.failover.serving(arena_id, arena.generation, arena.writer)

    async def serve(self, arena_id: int, standby: ProcessId | None = None) -> None:
        """Let another process serve the arena, with a state of its own."""
        machine, vault = self.machine, self.machine.vault
        before, process = vault.made[arena_id].writer, standby or await self.stand_by(arena_id)
        if before is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(machine.failover.handover, arena_id, process.pid, 10.0)
                await trio.sleep(0.004)
                machine.failover.yielded(arena_id, vault.made[arena_id].generation, before)
                await trio.sleep(0.003)
                machine.failover.serving(arena_id, vault.made[arena_id].generation, process)
            machine.failover.leave(arena_id, before)
        else:
            machine.failover.serving(arena_id, vault.made[arena_id].generation, process)
        arena = vault.made[arena_id]
        state = self.states[arena_id] = os.memfd_create("state")
        os.pwrite(state, HEAD.pack(1, 1, MAGIC, arena.generation, 0, 8, 0), 0)
        self.worked_ns[arena_id] = 1
        self.write()
        vault.descriptors[arena_id] = state
        facts = {"state_serial": arena.state_serial + 1, "state_generation": arena.generation}
        vault.become("state", replace(vault.made[arena_id], **facts))

    def write(self) -> None:
        self.n += 1
        for arena_id, state in self.states.items():
            marks = struct.pack("=QQ", 2 * self.n, 2 * self.n - 2)
            os.pwrite(state, CONTROL.pack(marks, b"", self.worked_ns[arena_id], 0) + bytes(16), CONTROL_AT)

    async def work(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await trio.sleep(0.1)
            for arena_id, busy in self.busy.items():
                self.worked_ns[arena_id] += round(busy * 1e8)
            self.write()

    async def rest(self) -> None:
        """Let the interactive service need little for as long as a deal takes."""
        self.busy[CHAT] = 0.2
        await self.work(8)

    def shares(self) -> list[float]:
        return [self.machine.coordinator.records[each].share.sm_percent for each in LEVELS]

    def why(self) -> str:
        return self.machine.coordinator.records[CHAT].share.why

    def moved(self) -> list[tuple[object, object]]:
        return [(facts["name"], facts["to_percent"]) for facts in self.machine.topics("share")]
