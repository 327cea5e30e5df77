"""Moves of services to the replica on another GPU: rounds of copies while the active serves, then one handover.

    COPYING ──the replica has copied ROUNDS images──▶ YIELDING ──last barrier──▶ HANDING ──the replica serves──▶ DONE
       └──────────── too slow, a death, the keeper's end, a failed image: CANCELLED ──────────┘

replicas.py lets the replica replace the service's arena in HANDING, once it has the last barrier; promotion.py promotes no
member until then.  A move is not stored: with mpsd it ends, and the next mpsd promotes the member that stopped.  Prose:
docs/services.md, "Moving a service to another GPU".
"""

import structlog
import trio

from mpsd.errors import ArenaBusy, BadRequest, MpsdError, NoRoom
from mpsd.model.process import ProcessId
from mpsd.model.service import LastRecord, MoveState, Phase
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import ServiceRecord
from mpsd.services.move_record import ROUNDS, MoveRecord
from mpsd.services.replicas import Replica, Replicas
from mpsd.services.rules.promotion_types import Asked, Taken, Unmoved

log = structlog.get_logger()
_LOOK_SECONDS = 0.5


class Moves:
    """Guards that a service has one move at a time, that each ends, and that its last barrier is not begun anew."""

    def __init__(self, coordinator: Coordinator, replicas: Replicas) -> None:
        self._coordinator, self._replicas = coordinator, replicas
        replicas.reported.subscribe(self._heard)

    async def run(self) -> None:
        """Find moves that are too slow, or whose processes have ended.  Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(_LOOK_SECONDS):
                    await self._coordinator.woken.wait()
                for record in list(self._coordinator.records.values()):
                    with guarded(record):
                        move = record.move
                        if move is not None and move.is_under_way and self._look(record, move):
                            nursery.start_soon(self._end, record, move.to_process)  # other moves do not wait for that

    def begin(self, record: ServiceRecord, gpu: str, wait_seconds: float) -> None:
        """Begin a move to this GPU, a UUID.  Raises BadRequest, ArenaBusy or NoRoom, and changes nothing then."""
        coordinator, service, arena = self._coordinator, record.service, record.arena
        name = f"service {arena.name}"
        if record.move is not None and record.move.is_under_way:
            raise ArenaBusy(f"{name} moves to GPU {record.move.to_gpu} already")
        if gpu == arena.gpu:
            raise BadRequest(f"{name} is on GPU {gpu} already")
        if coordinator.parts.is_drained(gpu):
            raise NoRoom(f"{name} cannot move to GPU {gpu}, which is drained: `mpsctl faults` has the reason")
        if service.phase is not Phase.SERVING or service.writer is None:
            raise ArenaBusy(f"{name} cannot move: it is {service.phase}, and no active can hand over")
        if not arena.layout_hash:
            raise BadRequest(f"{name} has nothing to move: its arena has no committed memory")
        replica = self._replicas.on(arena.id, gpu)
        if replica is None:
            raise NoRoom(
                f"{name} has no replica on GPU {gpu}: start a member there, with `images` and `replica_lag`, "
                "and ask again when `mpsctl service show` has its replica"
            )
        now, at = trio.current_time(), coordinator.parts.clock()
        pids = service.writer, replica.process
        record.move = MoveRecord(arena.gpu, gpu, *pids, replica.arena_id, at, now, now + wait_seconds)
        facts = {"from_gpu": arena.gpu, "to_gpu": gpu, "from_pid": service.writer.pid, "to_pid": replica.process.pid}
        coordinator.events.publish(record, "moving", **facts)
        coordinator.show(record)

    # -- events ------------------------------------------------------------------------------------------------------------

    def _heard(self, replica: Replica) -> None:
        """Take a report of the replica; ask the active for its last barrier once the rounds are done."""
        record = self._coordinator.records.get(replica.of)
        move = None if record is None else record.move
        if record is None or move is None or not move.is_under_way or replica.arena_id != move.to_id:
            return
        before = move.rounds
        move.hear(replica.last, replica.steps)
        is_served = record.service.phase is Phase.SERVING  # else a standby takes over, and the move waits for it
        if move.state is MoveState.COPYING and move.rounds >= ROUNDS and not replica.last.behind_bytes and is_served:
            move.state, move.from_process = MoveState.YIELDING, record.service.writer or move.from_process
            if refused := self._coordinator.tell(record, Asked(None, is_move=True), self._coordinator.parts.clock_ns()):
                self._cancel(record, move, refused)
        elif move.rounds != before:
            self._coordinator.show(record)

    def stopped(self, record: ServiceRecord, process: ProcessId, last: LastRecord) -> None:
        """Record that the writer stops at this barrier, before the vault makes it a reader."""
        move = record.move
        if move is None or move.state is not MoveState.YIELDING:
            return
        if not self._coordinator.tell(record, Taken(process)):
            move.state, move.last, move.stopped_ns = MoveState.HANDING, last, self._coordinator.parts.clock_ns()

    def settled(self, record: ServiceRecord, last: LastRecord) -> None:
        """Cancel the move if the active reports that its last barrier has no image.  One that is late may mean another."""
        move = record.move
        if move is not None and move.state is MoveState.HANDING and last.why and move.is_last(last):
            self._cancel(record, move, f"no image of the last barrier: {last.why}")

    def serving(self, record: ServiceRecord) -> None:
        """Record that the new active of a moved service serves."""
        move = record.move
        if move is None or not move.is_under_way or record.arena.id != move.to_id:
            return
        now_ns = self._coordinator.parts.clock_ns()
        move.pause_ms = round((now_ns - move.stopped_ns) / 1e6, 3) if move.stopped_ns else None
        move.end(MoveState.DONE, trio.current_time())
        self._coordinator.show(record)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def _look(self, record: ServiceRecord, move: MoveRecord) -> bool:
        """Return whether the process that has the service's name is to be ended."""
        if record.arena.id == move.to_id:
            return self._look_at_successor(record, move)
        if why := self._why_over(record, move):
            self._cancel(record, move, why)
        return False

    def _why_over(self, record: ServiceRecord, move: MoveRecord) -> str:
        """Return why the move cannot go on; empty if it can."""
        service, limits = record.service, self._coordinator.settings.limits
        replica = self._replicas.on(record.arena.id, move.to_gpu)
        if replica is None or replica.arena_id != move.to_id:
            return f"pid {move.to_process.pid}, which kept the replica, has ended"
        if move.state is MoveState.COPYING and trio.current_time() >= move.until:
            return f"the replica had copied {move.rounds} of {ROUNDS} images in {move.until - move.began:g} s"
        if move.state is MoveState.YIELDING and service.phase is Phase.SERVING:
            taken = f"pid {move.from_process.pid} did not take its last image within {limits.yield_seconds:g} s"
            return f"{taken}, or the vault's keeper has died"
        if move.state is MoveState.YIELDING and service.phase is not Phase.YIELDING:
            return f"pid {move.from_process.pid} ended, faulted or stopped before its last barrier"
        if move.state is MoveState.HANDING and service.phase is not Phase.MOVING:
            return f"the replica did not have the last barrier within {limits.promote_seconds:g} s"
        if move.state is MoveState.HANDING and service.is_empty:
            self._dismiss(record)
        return ""

    def _dismiss(self, record: ServiceRecord) -> None:
        """Let the members of an emptied arena end: one that were promoted would begin anew, and without the last barrier, which
        the newest image has.  promotion.py has removed them already."""
        for instance in record.instances.values():
            instance.dismissed = instance.dismissed or "the vault's keeper died during a move: the newest image has everything"
        record.instruct()

    def _look_at_successor(self, record: ServiceRecord, move: MoveRecord) -> bool:
        """Return whether the process that has the service's name does not serve in time: the next member makes the arena of the
        newest image."""
        if trio.current_time() < move.until:
            return False
        if record.service.phase is Phase.SERVING:
            move.end(MoveState.DONE, trio.current_time())  # its report is under way, or it hangs: the heartbeat covers that
            self._coordinator.show(record)
            return False
        self._cancel(record, move, f"pid {move.to_process.pid}, which kept the replica, did not serve in time")
        return True

    async def _end(self, record: ServiceRecord, process: ProcessId) -> None:
        with guarded(record, pid=process.pid):
            try:
                await self._coordinator.parts.end(process, self._coordinator.process_watch.uid_of(process))
            except MpsdError as exc:
                log.warning("service.not_ended", service=record.arena.name, pid=process.pid, why=str(exc))

    def _cancel(self, record: ServiceRecord, move: MoveRecord, why: str) -> None:
        coordinator = self._coordinator
        if record.service.is_empty and move.state is MoveState.HANDING:
            self._dismiss(record)
        move.end(MoveState.CANCELLED, trio.current_time(), why)
        facts = {"from_gpu": move.from_gpu, "to_gpu": move.to_gpu, "why": why}
        coordinator.events.publish(record, "unmoved", **facts)
        coordinator.tell(record, Unmoved())
