"""Services over a vault in memory: processes that live, fault, end and write as a test decides. The clock is trio's.

Whether a process's work may still write on the GPU is recorded here, apart from mpsd's knowledge; when the vault is asked
to promote a member, the record is checked.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from mpsd.errors import ArenaBusy, BadRequest, MpsdError, NoSuchArena, NotAllowed, StaleGeneration, VendorFailed
from mpsd.fairness.uid_ranges import parse
from mpsd.model.arena import FIRST_ADDRESS, Arena
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.model.service import Instruction, Phase, ServiceView
from mpsd.services.coordinator import Coordinator
from mpsd.services.enlistment import Enlistment, FindPlace
from mpsd.services.parts import ServiceParts
from mpsd.services.registry import ServiceRegistry
from mpsd.services.requests import ServiceRequests
from mpsd.services.rules.fault_fence import Settle
from mpsd.services.rules.promotion_types import PromotionLimits
from mpsd.services.settings import FailoverSettings
from mpsd.services.store import ServiceStore
from mpsd.vault.rules.usage import ArenaAccount
from tests.running import running

OWNER = 1000
SETTINGS = FailoverSettings(
    PromotionLimits(most_promotions=3, window_seconds=60.0, yield_seconds=4.0, promote_seconds=4.0, fence_seconds=2.0),
    Settle(sm=0.0, mmu=0.01),
    follow_grace=10.0,
)


@dataclass(eq=False)
class Process:
    """id, and what is so.  may_write: its work on the GPU may write into the arena; until it is over, dead or not."""

    id: ProcessId
    domain: str
    is_alive: bool = True
    may_write: bool = False
    is_torn: bool = False  # its context is
    was_killed: bool = False


class FakeEnds:
    """Replaces ProcessWatch: the test decides when a process ends."""

    def __init__(self, machine: "FakeMachine", on_end: Callable[[ProcessId, int], None]) -> None:
        self._room, self.on_end = machine, on_end
        self.watched: set[ProcessId] = set()

    def watch(self, process: ProcessId, uid: int) -> None:
        if not self._room.processes[process].is_alive:
            raise BadRequest(f"pid {process.pid} has ended")
        self.watched.add(process)

    @staticmethod
    def uid_of(process: ProcessId) -> int | None:
        return OWNER

    def kill(self, process: ProcessId) -> bool:
        self._room.processes[process].was_killed = True
        self._room.end(process)
        return True

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()


class NoServers:
    def look(self) -> None:
        pass

    async def run(self) -> None:
        await trio.sleep_forever()


@dataclass
class FakeVault:
    """Arenas as vault/arenas.py reports them; it outlives each mpsd of a test."""

    machine: "FakeMachine"
    made: dict[int, Arena] = field(default_factory=dict)
    told: Callable[[str, Arena], None] = lambda what, arena: None
    hurried: list[ProcessId] = field(default_factory=list)
    refusal: MpsdError | None = None  # of the next promotion
    descriptors: dict[int, int] = field(default_factory=dict)

    def arenas(self) -> list[Arena]:
        return list(self.made.values())

    def find(self, name: str) -> Arena:
        if (found := next((each for each in self.made.values() if each.name == name), None)) is None:
            raise NoSuchArena(f"no arena is called {name}")
        return found

    def find_id(self, arena_id: int) -> Arena:
        if arena_id not in self.made:
            raise NoSuchArena(f"no arena has id {arena_id}")
        return self.made[arena_id]

    @staticmethod
    def share(arena: Arena) -> int:
        return ArenaAccount().share(arena)

    def create(self, name: str = "llm") -> Arena:
        arena = Arena(len(self.made) + 1, name, OWNER, OWNER, 0o600, "GPU-a", FIRST_ADDRESS, 1 << 30, 1 << 30, 0.0)
        self.made[arena.id] = arena
        return arena

    def become(self, what: str, arena: Arena) -> Arena:
        self.made[arena.id] = arena
        self.told(what, arena)
        return arena

    def open(self, process: ProcessId, arena_id: int = 1) -> None:
        arena = self.made[arena_id]
        if process not in arena.readers:
            self.become("opened", replace(arena, readers=(*arena.readers, process)))

    def open_to_write(self, process: ProcessId, arena_id: int = 1) -> None:
        arena = self.made[arena_id]
        self.machine.processes[process].may_write = True
        self.become("opened", replace(arena, writer=process, generation=arena.generation + 1))

    def close(self, process: ProcessId, arena_id: int = 1) -> None:
        """Close the arena of a process with no running work."""
        self.machine.processes[process].may_write = False
        self.become("closed", self._without(self.made[arena_id], process))

    def fenced(self, process: ProcessId) -> None:
        """Record that the process is gone and none of its descriptors is held."""
        self.machine.processes[process].may_write = False
        for arena in list(self.made.values()):
            if process in (arena.writer, *arena.readers):
                self.become("fenced", self._without(arena, process))

    def promote(self, arena_id: int, process: ProcessId, fenced: ProcessId | None) -> Arena:
        arena = self.made[arena_id]
        if (refusal := self.refusal) is not None:
            self.refusal = None
            raise refusal
        assert not arena.is_sealed, "it is promoted in an arena that has been replaced"
        if process not in arena.readers:
            raise NotAllowed(f"pid {process.pid} has it not open")
        if arena.writer not in (None, fenced):
            raise ArenaBusy("another writes")
        if not self.machine.processes[process].is_alive:
            raise BadRequest(f"pid {process.pid} has ended")
        self.machine.check_nobody_writes()
        self.machine.processes[process].may_write = not self.machine.processes[process].is_torn
        left = tuple(each for each in arena.readers if each not in (process, fenced))
        self.made[arena_id] = replace(arena, writer=process, readers=left, generation=arena.generation + 1)
        return self.made[arena_id]

    def tell_promoted(self, arena: Arena) -> None:
        self.told("opened", arena)

    def step_down(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        arena = self.made[arena_id]
        if arena.writer != process or arena.generation != generation:
            raise StaleGeneration("it is another's")
        self.machine.processes[process].may_write = False
        return self.become("opened", replace(arena, writer=None, readers=(*arena.readers, process)))

    def replace(
        self, arena_id: int, by_id: int, generation: int, process: ProcessId, fenced: ProcessId | None
    ) -> tuple[Arena, Arena]:  # fmt: skip
        old, new = self.made[arena_id], self.made[by_id]
        if old.writer not in (None, fenced):
            raise ArenaBusy("another writes")
        alive = [each for each in self.machine.processes.values() if each.may_write and each.is_alive]
        assert not alive, "a process may still publish"
        if (new.writer, new.generation) != (process, generation):
            raise StaleGeneration("it is another's")
        self.made[by_id] = replace(new, name=old.name, generation=max(old.generation, generation) + 1)
        self.become("sealed", replace(old, name=f"{old.name}.replaced", is_sealed=True, writer=None))
        return self.made[by_id], self.made[arena_id]

    def hurry(self, process: ProcessId) -> None:
        self.hurried.append(process)

    @staticmethod
    def uid_of(process: ProcessId) -> int:
        return OWNER

    @staticmethod
    async def read_state(arena: Arena, read: Callable[..., Any], *args: object) -> Any:
        return read(*args)

    async def state_descriptor(self, arena_id: int) -> int:
        await trio.lowlevel.checkpoint()
        return self.descriptors.get(arena_id, -1)

    @staticmethod
    def _without(arena: Arena, process: ProcessId) -> Arena:
        readers = tuple(each for each in arena.readers if each != process)
        return replace(arena, readers=readers, writer=None if arena.writer == process else arena.writer)


class FakeMachine:
    """To be used in a test that has a trio clock.  faulted: domains in FAULT, and since when (trio time).
    contained: domains with a contained exception."""

    def __init__(self, path: Path, settings: FailoverSettings = SETTINGS) -> None:
        self.path, self.settings = path, settings
        self.processes: dict[ProcessId, Process] = {}
        self.faulted: dict[str, float] = {}
        self.contained: set[str] = set()
        self.drained: set[str] = set()  # GPUs
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.ended: list[ProcessId] = []  # that mpsd was asked to end
        self.is_stubborn = False  # who is to be ended does not
        self.vault = FakeVault(self)
        self.find_place: FindPlace | None = None
        self.coordinator: Coordinator
        self.failover: ServiceRequests

    @asynccontextmanager
    async def mpsd(self) -> AsyncIterator["FakeMachine"]:
        """One that runs; as a `kill -9` leaves it at the end."""
        store = ServiceStore(self.path / "services.db")
        facts = (self.domain_of, self.faulted.get, self.contained.__contains__, lambda domain: ("GPU-a",))
        clocks = {"clock": trio.current_time, "clock_ns": self.now_ns, "ticks": self.ticks}
        parts = ServiceParts(*facts, self._end, self._publish, is_drained=self.drained.__contains__, **clocks)  # type: ignore[arg-type]
        try:
            self.registry = ServiceRegistry(self.vault.find)
            self.coordinator = Coordinator(self.vault, parts, store, self.settings, self.registry)
            self.coordinator.process_watch = FakeEnds(self, self.coordinator._ended)  # type: ignore[assignment]
            self.vault.told = self.coordinator.heard_of
            ready = trio.Event()
            ready.set()
            enlisted = Enlistment(self.coordinator, store, self.find_place, parse("eve:100000:65536\n"))
            self.failover = ServiceRequests(self.coordinator, enlisted, NoServers(), ready)  # type: ignore[arg-type]
            self.enlisted = enlisted
            self.coordinator.fence_wanted.subscribe(self.failover.fencing.fence)
            self.coordinator.process_ended.subscribe(enlisted.forget)
            async with running(self.failover.run):
                await trio.sleep(0.001)
                yield self
        finally:
            self.vault.told = lambda what, arena: None
            store.close()

    @staticmethod
    def now_ns() -> int:
        return 10**12 + round(trio.current_time() * 1e9)

    @staticmethod
    def ticks() -> int:
        return 7 + round(trio.current_time() * 100)

    # -- processes -------------------------------------------------------------------------------------------------------

    def process(self, domain: str) -> ProcessId:
        made = ProcessId(100 + len(self.processes), self.ticks())
        self.processes[made] = Process(made, domain)
        return made

    async def member(self, domain: str, rank: int = 0, *, is_ready: bool = True, heartbeat: float = 0.0) -> ProcessId:
        made = self.process(domain)
        self.vault.open(made)
        await self.failover.join(1, made, rank, heartbeat)
        if is_ready:
            self.failover.ready(1, made)
        return made

    async def serves(self, domain: str = "a", **facts: float) -> ProcessId:
        """Return the only member, which serves."""
        made = await self.member(domain, **facts)  # type: ignore[arg-type]
        self.serving(made)
        return made

    def serving(self, process: ProcessId) -> None:
        self.failover.serving(1, self.vault.made[1].generation, process)

    def end(self, process: ProcessId) -> None:
        """Its process does; what it has put on the GPU may go on."""
        found = self.processes[process]
        if found.is_alive:
            found.is_alive = False
            trio.lowlevel.spawn_system_task(self._tell_end, process)

    async def _tell_end(self, process: ProcessId) -> None:
        watch = self.coordinator.process_watch
        if isinstance(watch, FakeEnds) and process in watch.watched:
            watch.watched.discard(process)
            watch.on_end(process, self.now_ns())

    async def die(self, process: ProcessId) -> None:
        """End the process, and report the end to mpsd."""
        self.end(process)
        await trio.testing.wait_all_tasks_blocked()

    async def _end(self, process: ProcessId, uid: int | None) -> None:
        self.ended.append(process)
        await trio.sleep(0.01)
        if self.is_stubborn:
            raise VendorFailed("its GPU work was not ended")
        self.end(process)

    def domain_of(self, process: ProcessId) -> str:
        found = self.processes.get(process)
        return found.domain if found else ""

    # -- faults ----------------------------------------------------------------------------------------------------------

    def tear_down(self, domain: str) -> None:
        """From now on the domain's contexts are gone; its work no longer writes."""
        for process in self.processes.values():
            if process.domain == domain:
                process.may_write, process.is_torn = False, True

    def see(self, source: Source, domain: str, fault_class: FaultClass = FaultClass.UNKNOWN, **facts: object) -> None:
        self.coordinator.see(Observation(source, self.now_ns(), fault_class, domain=domain, **facts))  # type: ignore[arg-type]

    def xid(self, number: int, domain: str) -> None:
        self.see(Source.KERNEL_LOG, domain, xid=number)

    def of_gpu(self, number: int, gpu: str) -> Observation:
        """An Xid that names the GPU and no domain."""
        return Observation(Source.KERNEL_LOG, self.now_ns(), FaultClass.DEVICE, gpu=gpu, xid=number)

    def see_fault(self, process: ProcessId) -> None:
        """All contexts of its domain are lost; the process has not noticed."""
        self.coordinator.fault(self.processes[process].domain, self.now_ns())

    def uvm_event(self, process: ProcessId) -> None:
        domain = self.processes[process].domain
        self.see(Source.UVM_EVENTS, domain, FaultClass.MMU, process=process, is_proof=True)

    # -- outcomes -------------------------------------------------------------------------------------------------

    def check_nobody_writes(self) -> None:
        writers = [each.id.pid for each in self.processes.values() if each.may_write]
        assert not writers, f"somebody is promoted while {writers} may write"

    def view(self) -> ServiceView:
        [found] = self.failover.services()
        return found

    def view_of(self, arena_id: int) -> ServiceView:
        return next(each for each in self.failover.services() if each.id == arena_id)

    def told(self, process: ProcessId) -> Instruction:
        return self.coordinator.records[1].instances[process].told

    def order(self, process: ProcessId) -> str:
        return self.told(process).order.value

    @property
    def phase(self) -> Phase:
        return self.view().phase

    def topics(self, word: str) -> list[Mapping[str, object]]:
        return [facts for topic, facts in self.events if topic == f"service.{word}"]

    def _publish(self, topic: str, facts: Mapping[str, object]) -> None:
        self.events.append((topic, facts))
