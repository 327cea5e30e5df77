"""Services in memory: record the requests of members; only the owner's request promotes a member."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from mpsd.errors import ArenaBusy, BadRequest, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import (
    Cause,
    HandedOver,
    Instruction,
    LastRecord,
    MemberState,
    MemberView,
    MoveState,
    MoveView,
    Order,
    Phase,
    Promotion,
    ReplicaOrder,
    ReplicaReport,
    ReplicaView,
    ServiceSettings,
    ServiceView,
)
from tests.unit.api.fake_arenas import FakeArenas

NOW = 1_700_000_000.0


@dataclass
class FakeReplicas:
    by_gpu: dict[str, ReplicaView] = field(default_factory=dict)  # of each service

    def on(self, arena_id: int, gpu: str) -> ReplicaView | None:
        return self.by_gpu.get(gpu)

    async def follow(
        self, arena_id: int, generation: int, process: ProcessId, of: Arena, report: ReplicaReport, wait_seconds: float
    ) -> ReplicaOrder:
        if process not in (of.writer, *of.readers):
            raise StaleGeneration(f"pid {process.pid} does not write arena {arena_id}")
        if report.has_gpu_failed:
            return ReplicaOrder(Order.SERVE, generation + 1, "GPU-a has failed", 3)
        return ReplicaOrder(Order.STANDBY, generation, "", 3)


@dataclass
class FakeFailover:
    arenas: FakeArenas
    views: dict[int, ServiceView] = field(default_factory=dict)
    enlisted_for: dict[ProcessId, int] = field(default_factory=dict)  # the owner's user
    said: list[tuple[object, ...]] = field(default_factory=list)
    replicas: FakeReplicas = field(default_factory=FakeReplicas)

    async def enlist(self, name: str, owner_uid: int, process: ProcessId, uid: int) -> Mapping[str, str]:
        self.enlisted_for[process] = owner_uid
        return {"CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/domains/d2/pipe"}

    async def join(self, arena_id: int, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        arena = self.arenas.find_id(arena_id)
        if process not in (arena.writer, *arena.readers):
            raise NotAllowed(f"pid {process.pid} has arena {arena.name} not open")
        return self._told(arena_id, process)

    def ready(self, arena_id: int, process: ProcessId) -> Instruction:
        return self._told(arena_id, process)

    async def follow(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        wait_seconds: float,
        answer: Callable[[Instruction], None],
    ) -> Instruction:
        return self._told(arena_id, process)

    def serving(self, arena_id: int, generation: int, process: ProcessId) -> None:
        self._term(arena_id, generation, process)

    def yielded(self, arena_id: int, generation: int, process: ProcessId, last: LastRecord | None = None) -> Instruction:
        self._term(arena_id, generation, process)
        return self._told(arena_id, process)

    def failed(self, arena_id: int, process: ProcessId, why: str) -> None:
        self._told(arena_id, process)
        self.said.append(("failed", process.pid, why))

    def leave(self, arena_id: int, process: ProcessId) -> None:
        self._told(arena_id, process)
        self.said.append(("leave", process.pid))

    async def get(self, arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
        return self._view(arena_id)

    def ids(self) -> list[int]:
        return sorted(self.views)

    def services(self) -> list[ServiceView]:
        return list(self.views.values())

    def view(self, arena_id: int) -> ServiceView:
        return self._view(arena_id)

    def members(self, arena_id: int) -> list[ProcessId]:
        view = self.views.get(arena_id)
        return [each.process for each in view.members] if view else []

    async def handover(self, arena_id: int, to_pid: int | None, wait_seconds: float, from_pid: int | None = None) -> HandedOver:
        writer = self._view(arena_id).writer
        if writer is None:
            raise ArenaBusy("the service is idle")
        self.said.append(("handover", arena_id, to_pid))
        return HandedOver(writer.pid, to_pid or writer.pid, 0.25)

    def move(self, arena_id: int, gpu: str, wait_seconds: float) -> ServiceView:
        """Done at once, if no other GPU fits."""
        view = self._view(arena_id)
        if view.gpu == gpu:
            raise BadRequest(f"service {view.name} is on GPU {gpu} already")
        pids = view.members[0].process.pid, 587
        move = MoveView(MoveState.DONE, view.gpu, gpu, *pids, NOW, 3, 0, 0, 1.25, 42.0)
        self.said.append(("move", arena_id, gpu, wait_seconds))
        self.views[arena_id] = replace(view, gpu=gpu, move=move)
        return self.views[arena_id]

    def settings(self, arena_id: int) -> ServiceSettings:
        return self._view(arena_id).settings

    def change(self, arena_id: int, settings: ServiceSettings) -> ServiceView:
        self.views[arena_id] = replace(self._view(arena_id), settings=settings)
        return self.views[arena_id]

    def _view(self, arena_id: int) -> ServiceView:
        if arena_id not in self.views:
            raise NoSuchArena(f"arena {arena_id} has no service")
        return self.views[arena_id]

    def _told(self, arena_id: int, process: ProcessId) -> Instruction:
        arena = self.arenas.find_id(arena_id)
        if process not in [member.process for member in self._view(arena_id).members]:
            raise NotAllowed(f"pid {process.pid} is no member")
        order = Order.SERVE if arena.writer == process else Order.STANDBY
        return Instruction(41, order, arena.generation, arena.layout_hash, 3, arena.writer)

    def _term(self, arena_id: int, generation: int, process: ProcessId) -> None:
        self._told(arena_id, process)
        if self.arenas.find_id(arena_id).generation != generation:
            raise StaleGeneration(f"arena {arena_id} is at another generation than {generation}")


def furnish(failover: FakeFailover) -> None:
    """That of arena 1, "weights", which client 586 serves."""
    arena = failover.arenas.find_id(1)
    writer = ProcessId(586, 5860)
    member = MemberView(writer, "d1", 0, MemberState.READY, True, True, NOW)
    last = Promotion(NOW, Cause.FIRST, None, 586, 7, promote_ms=0.5)
    failover.views[1] = ServiceView(
        1, arena.name, arena.owner_uid, arena.gpu, Phase.SERVING, 7, writer, 12, ServiceSettings(), (member,), 1, last,
        "it has no standby", replica=ReplicaView("weights.replica", "GPU-b", ProcessId(587, 5870), NOW, 3, 0, 60.0, False),
    )  # fmt: skip
