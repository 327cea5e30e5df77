"""Replicas of services: arenas on another GPU, each kept at the last image by the process that writes it.

    FOLLOWING ──the service has no active and cannot get one, and its GPU has failed──▶ REPLACED
        └───────the service moves here (moves.py), and the replica has its last barrier────▲

A replica replaces the service's arena in one transaction of the vault: it takes over the name, and no process can write the
old arena any more.  Its writer then completes it from the image, joins, and serves.  A service that a member on its own GPU can
still serve is never replaced.  Prose: docs/services.md, "A standby on another GPU".
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
import trio
from msgspec import Struct, structs

from mpsd.errors import BadRequest, MpsdError, NoSuchArena, NotAllowed, StaleGeneration, UnusablePath
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import MoveState, Order, Phase, ReplicaOrder, ReplicaReport, ReplicaView, ServiceSettings
from mpsd.notify import Signal
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import MOVE_ASKED, ServiceRecord
from mpsd.services.rules.promotion import successor
from mpsd.services.rules.promotion_types import Ended
from mpsd.services.views import own_share
from mpsd.wire.forward_state import CONTROL_AT

log = structlog.get_logger()
_LOOK_SECONDS = 0.5
_MARKS = struct.Struct("=QQ")


class Replica(Struct, eq=False):
    """One replica.  since_ns, since_at: when it began to follow.  steps: publishes of the active after the replica's record;
    None: not known.  is_behind: the bound was exceeded, and that was published."""

    arena_id: int
    process: ProcessId
    of: int  # the service's arena
    since_ns: int
    since_at: float
    last: ReplicaReport
    steps: int | None = None
    is_behind: bool = False


class Replicas:
    """Guards that a service is replaced only after its last active has ended or was killed, and only once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._by_arena: dict[int, Replica] = {}  # by the id of the replica's arena
        self.reported = Signal[[Replica]]()

    async def run(self) -> None:
        """Look for replicas that have ended, or are too far behind.  Run as long as mpsd."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            for replica in list(self._by_arena.values()):
                record = self._coordinator.records.get(replica.of)
                with guarded(*([] if record is None else [record]), pid=replica.process.pid):
                    self._look(replica)

    def view(self, arena_id: int) -> ReplicaView | None:
        """Return the replica of a service that is behind least; None without one."""
        views = (self._view(each) for each in self._of(arena_id) if self._arena(each.arena_id) is not None)
        return min(views, key=lambda each: -(each.at or 0.0), default=None)

    def on(self, arena_id: int, gpu: str) -> Replica | None:
        """Return the replica of a service on this GPU."""
        known = {arena.id: arena.gpu for arena in self._coordinator.vault.arenas()}
        return next((each for each in self._of(arena_id) if known.get(each.arena_id) == gpu), None)

    async def follow(
        self, arena_id: int, generation: int, process: ProcessId, of: Arena, report: ReplicaReport, wait_seconds: float
    ) -> ReplicaOrder:
        """Take a report of the process that keeps the replica, and return its order once that is to serve, or the time is up.

        Raises StaleGeneration (it is not the arena's writer), BadRequest, NotAllowed.
        """
        coordinator = self._coordinator
        ours = coordinator.vault.find_id(arena_id)
        if ours.writer != process or (ours.generation != generation and of.id != arena_id):
            raise StaleGeneration(f"pid {process.pid} does not write {ours.name} in generation {generation}")
        if of.id == arena_id:  # the last answer was lost
            return ReplicaOrder(Order.SERVE, ours.generation, "it has replaced the service's arena", None)
        if of.owner_uid != ours.owner_uid:
            raise NotAllowed(f"arena {ours.name} is user {ours.owner_uid}'s, and service {of.name} is user {of.owner_uid}'s")
        if of.gpu == ours.gpu:
            raise BadRequest(f"a replica of {of.name} has to be on another GPU than {of.gpu}")
        coordinator.process_watch.watch(process, coordinator.vault.uid_of(process))
        replica = self._by_arena.get(arena_id)
        if replica is None or replica.process != process or replica.of != of.id:
            replica = Replica(arena_id, process, of.id, coordinator.parts.clock_ns(), coordinator.parts.clock(), report)
            self._by_arena[arena_id] = replica
        replica.last = report
        replica.steps = await self._steps(replica, of)
        self._look(replica)
        self.reported.emit(replica)
        with trio.move_on_after(wait_seconds):
            while not self._why_replace(replica) and self._has_failed(replica) == report.has_gpu_failed:
                record = coordinator.records.get(of.id)
                with trio.move_on_after(_LOOK_SECONDS):  # a GPU may be drained without a change of the service
                    if record is None:
                        await trio.sleep_forever()
                    await record.changed.wait()
        if self._why_replace(replica):
            replica.steps = await self._steps(replica, coordinator.vault.find_id(of.id))  # the active has ended
        if why := self._why_replace(replica):
            return self._replace(replica, generation, why)
        return ReplicaOrder(
            Order.STANDBY, generation, "", replica.steps, self._has_failed(replica), self._is_moving_to(replica)
        )

    # -- how far behind ----------------------------------------------------------------------------------------------------

    def _of(self, arena_id: int) -> Iterator[Replica]:
        return (each for each in self._by_arena.values() if each.of == arena_id)

    def _arena(self, arena_id: int) -> Arena | None:
        """Return the arena; None if it was removed, perhaps a moment ago."""
        try:
            return self._coordinator.vault.find_id(arena_id)
        except NoSuchArena:
            return None

    def _view(self, replica: Replica) -> ReplicaView:
        arena, last = self._coordinator.vault.find_id(replica.arena_id), replica.last
        return ReplicaView(
            arena.name, arena.gpu, replica.process, last.at, replica.steps, last.behind_bytes, last.bound_seconds,
            replica.is_behind,
        )  # fmt: skip

    def _look(self, replica: Replica) -> None:
        """Forget a replica that has no process any more, and publish when one exceeds its bound."""
        coordinator = self._coordinator
        ours, record = self._arena(replica.arena_id), coordinator.records.get(replica.of)
        if ours is None or ours.writer != replica.process or self._arena(replica.of) is None:
            self._by_arena.pop(replica.arena_id, None)
            if record is not None:
                coordinator.events.publish(record, "unreplicated", pid=replica.process.pid)
            return
        lag = coordinator.parts.clock() - (replica.last.at or replica.since_at)
        is_served = record is not None and record.service.phase is Phase.SERVING
        is_behind = is_served and replica.steps != 0 and lag > replica.last.bound_seconds
        if is_behind and not replica.is_behind and record is not None:
            facts = {"pid": replica.process.pid, "bytes": replica.last.behind_bytes, "steps": replica.steps}
            seconds = None if replica.last.at is None else round(lag, 3)
            coordinator.events.publish(record, "behind", seconds=seconds, bound=replica.last.bound_seconds, **facts)
        replica.is_behind = is_behind

    async def _steps(self, replica: Replica, of: Arena) -> int | None:
        """Return how often the active has published after the replica's record; None: not known."""
        report, record = replica.last, self._coordinator.records.get(of.id)
        if record is not None and record.move is not None and self._is_moving_to(replica) and record.move.is_complete(report):
            return 0  # it has stopped there; to ask the keeper would be a part of the pause
        try:
            descriptor = await self._coordinator.vault.state_descriptor(of.id)
        except MpsdError:  # the keeper has died
            return None
        if descriptor < 0:
            return None
        try:
            if of.state_generation != report.generation:
                return None
            marks = await self._coordinator.vault.read_state(of, os.pread, descriptor, _MARKS.size, CONTROL_AT)
            first, second = _MARKS.unpack(marks)
            return max(0, int(max(first, second)) // 2 - report.sequence)
        except (OSError, struct.error):
            return None
        finally:
            os.close(descriptor)

    # -- to replace --------------------------------------------------------------------------------------------------------

    def _why_replace(self, replica: Replica) -> str:
        """Return why the replica has to serve now; empty: it need not, or may not yet."""
        coordinator = self._coordinator
        of = self._arena(replica.of)
        if of is None or replica.last.at is None:
            return ""
        if self._is_moved(coordinator.records.get(of.id), replica):
            return MOVE_ASKED
        if not self._has_failed(replica):
            return ""
        is_drained = coordinator.parts.is_drained(of.gpu)
        record = coordinator.records.get(of.id)
        killed = self._killed(of, record) if is_drained else None
        if of.writer not in (None, killed):
            return ""
        if record is not None and (
            record.service.writer not in (None, killed) or record.service.holder or successor(record.service)
        ):
            return ""
        if not is_drained and self._may_come(of, record):
            return ""
        return f"GPU {of.gpu} has failed, and no member there can serve"

    def _is_moving_to(self, replica: Replica) -> bool:
        record = self._coordinator.records.get(replica.of)
        move = None if record is None else record.move
        return move is not None and move.is_under_way and move.to_id == replica.arena_id

    def _is_moved(self, record: ServiceRecord | None, replica: Replica) -> bool:
        """Return whether the service's active has stopped for a move to this replica, which has its last barrier."""
        if record is None or record.move is None or not self._is_moving_to(replica):
            return False
        is_free = record.service.phase is Phase.MOVING and record.service.holder is None
        return is_free and record.move.is_complete(replica.last)

    def _has_failed(self, replica: Replica) -> bool:
        """Return whether the service's GPU has failed since the replica began to follow, as this mpsd or an earlier one saw."""
        of = self._arena(replica.of)
        return of is not None and (self._is_seen_failed(replica, of) or replica.last.has_gpu_failed)

    def _is_seen_failed(self, replica: Replica, of: Arena) -> bool:
        """Return whether this mpsd has seen that failure: the word of a replica is not enough to tell others."""
        parts, evidence = self._coordinator.parts, self._coordinator.evidence
        return parts.is_drained(of.gpu) or evidence.has_gpu_failed("", (of.gpu,), replica.since_ns)

    def _killed(self, of: Arena, record: ServiceRecord | None) -> ProcessId | None:
        """Kill the active of a service that is being fenced, and that no standby there can succeed, and return it.

        Its GPU has to be reset, so that there are no co-runners that this could harm, and a process may hang in the driver and
        not end.  It writes no memory of the replica, and publishes no more."""
        coordinator = self._coordinator
        if record is None or record.service.phase is not Phase.FENCING or successor(record.service) is not None:
            return None
        writer = record.service.writer
        return writer if writer is not None and coordinator.process_watch.kill(writer) else None

    def _may_come(self, of: Arena, record: ServiceRecord | None) -> bool:
        """Return whether a process that is starting may serve on the service's own GPU, which may work again."""
        if record is not None and record.service.members:
            return True
        replicas = {each.process for each in self._of(of.id)}
        return any(each not in replicas for each in self._coordinator.registry.enlisted(of.name, of.owner_uid))

    def _replace(self, replica: Replica, generation: int, why: str) -> ReplicaOrder:
        """Let the replica be the service's arena, and dismiss the members of the old one.  Raises MpsdError, and changes
        nothing."""
        coordinator = self._coordinator
        old = coordinator.records.get(replica.of)
        move = old.move if old is not None and self._is_moving_to(replica) else None
        lag, of = self._view(replica), coordinator.vault.find_id(replica.of)
        has_gpu_failed = self._is_seen_failed(replica, of)
        with self._settings_stored(old, replica.arena_id):
            arena, gone = coordinator.vault.replace(of.id, replica.arena_id, generation, replica.process, of.writer)
        del self._by_arena[replica.arena_id]
        if old is not None:
            settings = old.settings
            for process, instance in list(old.instances.items()):
                instance.dismissed = instance.dismissed or f"the service has moved to GPU {arena.gpu}: {why}"
                if old.service.member(process) is not None:
                    coordinator.tell(old, Ended(process))
            old.instruct()
        record = coordinator.record(arena.id)
        if old is not None and move is not None:
            move.state, move.until = MoveState.HANDING, trio.current_time() + coordinator.settings.limits.promote_seconds
            old.move, record.move = None, move
            if old.service.phase is Phase.MOVING:  # no process can write its arena any more
                old.service = structs.replace(old.service, phase=Phase.IDLE, deadline=None)
            coordinator.show(record)
        if old is not None:
            self._pass_on(record, settings)
        facts = {"from_gpu": gone.gpu, "to_gpu": arena.gpu, "pid": replica.process.pid, "at": lag.at, "steps": lag.steps}
        bound = lag.bound_seconds
        coordinator.events.publish_moved(record, has_gpu_failed=has_gpu_failed, why=why, bound=bound, **facts)
        return ReplicaOrder(Order.SERVE, arena.generation, why, lag.steps, is_moving=why == MOVE_ASKED)

    @contextmanager
    def _settings_stored(self, old: ServiceRecord | None, arena_id: int) -> Iterator[None]:
        """Store the service's settings for this arena before it replaces the service's own; delete them if that fails.

        The vault and the services write to different files, and mpsd may end between the two writes."""
        store, own = self._coordinator.store, self._coordinator.records.get(arena_id)
        if old is None or not old.is_stored or (own is not None and own.is_stored):
            yield
            return
        with suppress(UnusablePath):  # `_pass_on` reports it
            store.save(arena_id, old.settings)
        try:
            yield
        except MpsdError:
            with suppress(UnusablePath):
                store.forget(arena_id)
            raise

    def _pass_on(self, record: ServiceRecord, settings: ServiceSettings) -> None:
        """Give the settings to the service in its new arena, which has the name already: without a disk until mpsd ends."""
        try:
            self._coordinator.change(record, settings)
        except UnusablePath as exc:
            log.error("store.failed", statement="the settings of a service that has moved", why=str(exc))
            record.settings, record.share = settings, own_share(settings)
            record.service = structs.replace(record.service, until_done=settings.until_done)
            self._coordinator.show(record)
