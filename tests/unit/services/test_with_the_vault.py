"""Services over the real vault, with real processes: its fence is theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mpsd.errors import ArenaBusy, NotAllowed
from mpsd.model.arena import Access
from mpsd.model.fault import Observation, Source
from mpsd.model.process import ProcessId
from mpsd.model.service import Order
from mpsd.services.coordinator import Coordinator
from mpsd.services.enlistment import Enlistment
from mpsd.services.parts import ServiceParts
from mpsd.services.registry import ServiceRegistry
from mpsd.services.requests import ServiceRequests
from mpsd.services.settings import FailoverSettings
from mpsd.services.store import ServiceStore
from tests.running import running
from tests.unit.services.fake_machine import NoServers
from tests.unit.vault.conftest import machine, other, writer
from tests.unit.vault.machine import PROGRAM, SPEC, Machine, until

__all__ = ["machine", "other", "writer"]  # fixtures
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: make build")


@asynccontextmanager
async def services(
    machine: Machine, domains: dict[ProcessId, str]
) -> AsyncIterator[tuple[ServiceRequests, Coordinator, int]]:
    """Run services with one arena, until a `kill -9`."""

    async def end(process: ProcessId) -> None:
        raise AssertionError("nobody is to be ended here")

    registry = ServiceRegistry(lambda name: vault.arenas.find(name))
    machine.is_served = registry.is_served
    async with machine.vault() as vault:
        facts = (lambda process: domains.get(process, ""), lambda name: None, lambda name: False, lambda name: ())
        parts = ServiceParts(*facts, end, lambda topic, facts: None)
        store = ServiceStore(machine.directory / "services.db")
        coordinator = Coordinator(vault.arenas, parts, store, FailoverSettings(), registry)
        failover = ServiceRequests(coordinator, Enlistment(coordinator, store, None), NoServers(), vault.arenas.ready)  # type: ignore[arg-type]
        coordinator.fence_wanted.subscribe(failover.fencing.fence)
        vault.arenas.changed.subscribe(coordinator.heard_of)
        known = vault.arenas.arenas()
        arena = known[0] if known else await vault.arenas.create(SPEC, 1000, 1000, None)
        try:
            async with running(failover.run):
                yield failover, coordinator, arena.id
        finally:
            store.close()


async def join(failover: ServiceRequests, coordinator: Coordinator, arena_id: int, process: ProcessId) -> None:
    arenas = coordinator.vault
    await arenas.open(arena_id, Access.READ, process, 0)  # type: ignore[attr-defined]
    await failover.join(arena_id, process, 0, 0)
    failover.ready(arena_id, process)


async def test_the_end_of_a_process_and_of_what_is_held_of_it_promotes_the_next(machine, writer, other):
    machine.holding.hold(writer.process)
    async with services(machine, {writer.process: "a", other.process: "b"}) as (failover, coordinator, arena_id):
        await join(failover, coordinator, arena_id, writer.process)
        failover.serving(arena_id, 1, writer.process)
        await join(failover, coordinator, arena_id, other.process)
        with pytest.raises(ArenaBusy, match="has it"):
            await coordinator.vault.open(arena_id, Access.WRITE, other.process, 0)
        told = await failover.follow(arena_id, other.process, None, 0)
        writer.end()
        await until(lambda: writer.process in machine.holding.released)
        assert (await failover.follow(arena_id, other.process, None, 0)).order is Order.STANDBY
        machine.holding.held[writer.process].set()
        while told.order is not Order.SERVE:
            told = await failover.follow(arena_id, other.process, told.serial, 10)
        assert (told.generation, coordinator.vault.find_id(arena_id).writer) == (2, other.process)


async def test_a_fault_promotes_the_next_though_what_is_held_is_still_held(machine, writer, other):
    machine.holding.hold(writer.process)
    async with services(machine, {writer.process: "a", other.process: "b"}) as (failover, coordinator, arena_id):
        await join(failover, coordinator, arena_id, writer.process)
        await join(failover, coordinator, arena_id, other.process)
        coordinator.see(Observation(Source.KERNEL_LOG, coordinator.parts.clock_ns(), domain="a", xid=43))
        assert (await failover.follow(arena_id, other.process, None, 0)).order is Order.SERVE
        with pytest.raises(NotAllowed):
            await coordinator.vault.open(arena_id, Access.READ, writer.process, 0)
    async with services(machine, {other.process: "b"}) as (failover, coordinator, arena_id):
        assert (await failover.join(arena_id, other.process, 0, 0)).order is Order.SERVE
        assert coordinator.vault.find_id(arena_id).generation == 2
