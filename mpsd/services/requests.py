"""The socket's methods for members, owners and starters; api/methods/services.py checks the privilege."""

import math
from collections.abc import Callable, Mapping, Sequence

import trio
from msgspec.structs import replace

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, KeeperFailed, NoSuchArena, NotAllowed, StaleGeneration, TooMany
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import (
    HandedOver,
    Instruction,
    LastRecord,
    MemberState,
    Order,
    Phase,
    ServiceSettings,
    ServiceView,
)
from mpsd.services.coordinator import Coordinator
from mpsd.services.elastic import ElasticShares
from mpsd.services.enlistment import Enlistment
from mpsd.services.fencing import Fencing
from mpsd.services.guard import AGAIN_SECONDS, guarded
from mpsd.services.heartbeats import Heartbeats
from mpsd.services.members import Instance, ServiceRecord
from mpsd.services.moves import Moves
from mpsd.services.replicas import Replicas
from mpsd.services.rules.promotion_types import Asked, Elapsed, Ended, Failed, Finished, Joined, Promoted, Ready, Silent
from mpsd.services.server_watch import Servers
from mpsd.services.settings import FailoverSettings
from mpsd.services.views import view

MOST_OF_OWNER = 2048  # members of one user's services: some steps look at all members of all services (25 ms for 16,384)
_ROOT = 0
_BEGIN_SECONDS = 15.0  # the keeper's contents are checked after a start


def _nobody(told: Instruction) -> None:
    pass


class ServiceRequests:
    """Guards that a process can report only for itself, and that a silent one is noticed."""

    def __init__(self, coordinator: Coordinator, enlistment: Enlistment, servers: Servers, ready: trio.Event) -> None:
        """ready: set when the vault is ready."""
        self.coordinator, self.enlistment, self.servers, self._ready = coordinator, enlistment, servers, ready
        self._begun = trio.Event()
        self._due = math.inf  # trio time of the next check
        self.fencing, self._heartbeats, self.replicas = Fencing(coordinator), Heartbeats(coordinator), Replicas(coordinator)
        self._moves = Moves(coordinator, self.replicas)
        self._elastic = ElasticShares(coordinator, self._heartbeats.work_of, lambda: coordinator.settings.elastic)

    def configure(self, settings: FailoverSettings) -> None:
        self.coordinator.settings = settings

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.coordinator.process_watch.run)
            self.enlistment.resume()
            await nursery.start(self.fencing.run)
            await self._ready.wait()  # for ever, if the vault's keeper cannot start: then no process can join
            self.coordinator.begin()
            self._begun.set()
            nursery.start_soon(self.servers.run)
            nursery.start_soon(self._heartbeats.run)
            nursery.start_soon(self._elastic.run)
            nursery.start_soon(self.replicas.run)
            nursery.start_soon(self._moves.run)
            nursery.start_soon(self._watch_time)

    # -- members ---------------------------------------------------------------------------------------------------------

    async def enlist(self, name: str, owner_uid: int, process: ProcessId, uid: int) -> Mapping[str, str]:
        return await self.enlistment.enlist(name, owner_uid, process, uid)

    async def join(self, arena_id: int, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        """Make the process a member; no effect if it is one.

        Raises NotAllowed (it does not have the arena open), BadRequest, TooMany.
        """
        with trio.move_on_after(_BEGIN_SECONDS):
            await self._begun.wait()
        if not self._begun.is_set():
            raise KeeperFailed("the vault's keeper does not answer yet")
        return self._join(arena_id, process, rank, heartbeat_seconds)

    def _join(self, arena_id: int, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        coordinator = self.coordinator
        arena = self._held(arena_id, process)
        if arena.is_sealed:
            raise ArenaSealed(f"arena {arena.name} is sealed and cannot be written any more")
        coordinator.process_watch.watch(process, coordinator.vault.uid_of(process))
        self._check_room(arena, process)
        record = coordinator.record(arena_id)
        if (instance := record.instances.get(process)) is not None:
            instance.heartbeat_seconds = heartbeat_seconds
            self._hear(record, instance)
            coordinator.show(record)
            return instance.told
        if process != record.service.holder:
            self._seat_absent(record)
        return self._add(record, process, rank, heartbeat_seconds)

    def _seat_absent(self, record: ServiceRecord) -> None:
        """Make the active of an earlier mpsd a member before it joins again: so it is fenced if it hangs.

        Until it joins it is silent only after as long as mpsd waits for others too: it may wait for mpsd in a call.
        """
        if (active := self.coordinator.actives.absent(record)) is None:
            return
        try:
            self.coordinator.process_watch.watch(active.process, self.coordinator.vault.uid_of(active.process))
            seconds = max(active.heartbeat_seconds, self.coordinator.settings.follow_grace)
            self._add(record, active.process, active.rank, seconds)
        except (BadRequest, TooMany):  # it has ended, and the vault reports when it is fenced; or the next join tries again
            return

    def _add(self, record: ServiceRecord, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        """Add the member.  Raises BadRequest."""
        coordinator, arena = self.coordinator, record.arena
        parts = coordinator.parts
        domain, now = parts.domain_of(process), trio.current_time()
        told = Instruction(0, Order.STANDBY, arena.generation, arena.layout_hash, arena.state_serial, arena.writer)
        instance = Instance(process, domain, parts.clock_ns(), parts.clock(), heartbeat_seconds, now, told)
        record.add(instance)
        if refused := coordinator.tell(record, Joined(process, domain, rank)):
            del record.instances[process]
            coordinator.leave_if_empty(record)
            raise BadRequest(f"pid {process.pid} cannot join service {arena.name}: {refused}")
        coordinator.events.publish(record, "joined", pid=process.pid, domain=domain, rank=rank)
        if domain and parts.fault_since(domain) is not None:
            coordinator.fault(domain, parts.clock_ns(), process)
        self.servers.look()
        return instance.told

    def _check_room(self, arena: Arena, process: ProcessId) -> None:
        """Raise TooMany if a new member would be one too many for the owner: one process can join all services of one owner."""
        records, share_of = self.coordinator.records, self.coordinator.vault.share
        is_of_root = arena.owner_uid == _ROOT and arena.pid_namespace is None  # a container's root may be any user there
        if is_of_root or (arena.id in records and process in records[arena.id].instances):
            return
        share = share_of(arena)
        if sum(len(each.instances) for each in records.values() if share_of(each.arena) == share) >= MOST_OF_OWNER:
            raise TooMany(f"the services of user {arena.owner_uid} have {MOST_OF_OWNER} members, and no more may join")

    def ready(self, arena_id: int, process: ProcessId) -> Instruction:
        record, instance = self._seat(arena_id, process)
        instance.is_ready = True
        member = record.service.member(process)
        if member is not None and member.standing is not MemberState.FAULTED:
            self.coordinator.tell(record, Ready(process))
        self._hear(record, instance)
        return instance.told

    async def follow(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        wait_seconds: float,
        answer: Callable[[Instruction], None] = _nobody,
    ) -> Instruction:
        """Return the instruction once its serial is above `after`, or the time is up.

        answer: called first if the member is to serve; it neither waits nor raises, and the method then returns the same
        instruction or a newer one.
        """
        record, instance = self._seat(arena_id, process)

        def answer_what_is_new(told: Instruction) -> None:
            if after is not None and told.serial > after:
                answer(told)

        instance.asking.append(answer_what_is_new)
        try:
            self._hear(record, instance)
            with trio.move_on_after(wait_seconds if after is not None else 0):
                while after is not None and instance.told.serial <= after and record.instances.get(process) is instance:
                    await record.changed.wait()
        finally:
            instance.asking.remove(answer_what_is_new)
            instance.heard_at = trio.current_time()
            if self._silent_at(instance) < self._due:
                self.coordinator.woken.notify()
        if record.instances.get(process) is not instance:
            raise NotAllowed(f"pid {process.pid} is no longer a member of service {record.arena.name}")
        return instance.told

    def serving(self, arena_id: int, generation: int, process: ProcessId) -> None:
        record, _ = self._seat(arena_id, process)
        self._check_writer(record, generation, process)
        self.coordinator.tell(record, Promoted(process))
        self._moves.serving(record)

    def yielded(self, arena_id: int, generation: int, process: ProcessId, last: LastRecord | None = None) -> Instruction:
        """Record that the process has stopped writing.  Repeating it, also to a later mpsd, changes nothing.

        last: it yields for a move, or finds afterwards that its last barrier left no image."""
        record, instance = self._seat(arena_id, process)
        if record.arena.writer == process or generation > record.arena.generation:
            if last is None:
                self.coordinator.tell(record, Finished(process))  # refused if mpsd asked it to yield
            else:
                self._moves.stopped(record, process, last)
            self.coordinator.vault.step_down(arena_id, generation, process)
        if last is not None:
            self._moves.settled(record, last)
        return instance.told

    def failed(self, arena_id: int, process: ProcessId, why: str) -> None:
        record, instance = self._seat(arena_id, process)
        instance.dismissed = instance.dismissed or f"it reported that it failed: {why}"
        event = Failed(process) if record.service.writer == process else Ended(process)
        self.coordinator.events.publish(record, "failed", pid=process.pid, why=why)
        self.coordinator.tell(record, event, self.coordinator.parts.clock_ns(), why)

    def leave(self, arena_id: int, process: ProcessId) -> None:
        """End the membership; a writer has stopped writing before it calls this."""
        record, _ = self._seat(arena_id, process)
        if record.service.writer == process and record.arena.writer == process:
            self.coordinator.tell(record, Finished(process))
            self.coordinator.vault.step_down(arena_id, record.arena.generation, process)
        record.instances.pop(process, None)
        self.coordinator.tell(record, Ended(process))
        self.enlistment.forget(process)
        self.coordinator.leave_if_empty(record)

    # -- owners ----------------------------------------------------------------------------------------------------------

    async def get(self, arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
        """Return the view once its revision is above `after`, or the time is up.

        Raises NoSuchArena for an arena without a service.
        """
        record = self._find(arena_id)
        with trio.move_on_after(wait_seconds if after is not None else 0):
            while after is not None and record.revision <= after and not record.is_removed:
                await record.changed.wait()
        return self.view(arena_id)

    def ids(self) -> Sequence[int]:
        """Return the ids of all services, those of their arenas, in order."""
        return sorted(self.coordinator.records)

    def services(self) -> Sequence[ServiceView]:
        return [self.view(each) for each in self.ids()]

    def view(self, arena_id: int) -> ServiceView:
        """Return one of the services.  Raises NoSuchArena."""
        return self._view(self._find(arena_id))

    def _view(self, record: ServiceRecord) -> ServiceView:
        move = None if record.move is None else record.move.view_at(trio.current_time())
        return replace(view(record), replica=self.replicas.view(record.arena.id), move=move)

    async def handover(self, arena_id: int, to_pid: int | None, wait_seconds: float, from_pid: int | None = None) -> HandedOver:
        """Return when the next member serves.  from_pid: the active's, if it is to leave: then no member need be ready.

        Raises ArenaBusy if no member can, or not in time; BadRequest."""
        coordinator, record = self.coordinator, self._find(arena_id)
        name, began, from_ = record.arena.name, trio.current_time(), record.service.writer
        to = next((each.process for each in record.service.members if each.process.pid == to_pid), None)
        if to_pid is not None and to is None:
            raise BadRequest(f"pid {to_pid} is not a member of service {name}")
        if from_pid is not None and (to is not None or from_ is None or from_.pid != from_pid):
            active = f"pid {from_.pid} is" if from_ is not None else "there is none"
            why = f"pid {from_pid} is not the active of service {name}: {active}"
            raise BadRequest(why if to is None else "`from_pid` and `to_pid` are both given")
        asked = Asked(to, is_leave=from_pid is not None)
        if refused := coordinator.tell(record, asked, coordinator.parts.clock_ns()):
            raise ArenaBusy(f"service {name} cannot be handed over: {refused}")
        assert from_ is not None, "it serves"
        with trio.move_on_after(wait_seconds):
            while not record.is_removed:
                writer, phase = record.service.writer, record.service.phase
                if phase is Phase.SERVING and writer == from_:
                    raise ArenaBusy(f"service {name} was not handed over: pid {from_.pid} continues, as no member is ready")
                if (phase is Phase.SERVING and writer is not None) or (writer is None and asked.is_leave):
                    return HandedOver(from_.pid, writer.pid if writer else None, trio.current_time() - began)
                await record.changed.wait()
        raise ArenaBusy(f"service {name} is not handed over yet: it is {record.service.phase}")

    def move(self, arena_id: int, gpu: str, wait_seconds: float) -> ServiceView:
        """Begin a move to the GPU with this UUID.  wait_seconds: until the replica has copied enough.

        Raises ArenaBusy, BadRequest, NoRoom, NoSuchArena."""
        record = self._find(arena_id)
        self._moves.begin(record, gpu, wait_seconds)
        return self._view(record)

    def change(self, arena_id: int, settings: ServiceSettings) -> ServiceView:
        record = self.coordinator.record(arena_id)
        self.coordinator.change(record, settings)
        return view(record)

    def members(self, arena_id: int) -> Sequence[ProcessId]:
        record = self.coordinator.records.get(arena_id)
        return [each.process for each in record.service.members] if record else []

    def settings(self, arena_id: int) -> ServiceSettings:
        record = self.coordinator.records.get(arena_id)
        return record.settings if record else ServiceSettings()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _find(self, arena_id: int) -> ServiceRecord:
        if (record := self.coordinator.records.get(arena_id)) is None:
            arena = self.coordinator.vault.find_id(arena_id)
            raise NoSuchArena(f"arena {arena.name} has no service")
        return record

    def _held(self, arena_id: int, process: ProcessId) -> Arena:
        arena = self.coordinator.vault.find_id(arena_id)
        if process != arena.writer and process not in arena.readers:
            raise NotAllowed(f"pid {process.pid} has arena {arena.name} not open")
        return arena

    def _seat(self, arena_id: int, process: ProcessId) -> tuple[ServiceRecord, Instance]:
        record = self.coordinator.records.get(arena_id)
        if record is None or (instance := record.instances.get(process)) is None:
            raise NotAllowed(f"pid {process.pid} has not joined the service of arena {arena_id}")
        return record, instance

    def _check_writer(self, record: ServiceRecord, generation: int, process: ProcessId) -> None:
        arena = record.arena
        if arena.writer != process or record.service.writer != process or arena.generation != generation:
            asked = f"pid {process.pid} does not serve {arena.name} in generation {generation}"
            raise StaleGeneration(f"{asked}: it is at {arena.generation}")

    # -- silence ---------------------------------------------------------------------------------------------------------

    def _hear(self, record: ServiceRecord, instance: Instance) -> None:
        """Record a sign of life from the member; a silent standby is ready again."""
        instance.heard_at = trio.current_time()
        member = record.service.member(instance.process)
        is_back = member is not None and member.standing is MemberState.SILENT and record.service.writer != instance.process
        if is_back and instance.is_ready:
            self.coordinator.tell(record, Ready(instance.process))

    async def _watch_time(self) -> None:
        """Apply the deadlines of services, find standbys that have stopped asking, and remove empty services."""
        coordinator = self.coordinator
        while True:
            now, due = trio.current_time(), math.inf
            for record in list(coordinator.records.values()):
                next_ = now + AGAIN_SECONDS
                with guarded(record):
                    self._look_at_time(record, now)
                    next_ = self._next(record)
                due = min(due, next_)
            self._due = due
            with trio.move_on_at(due):
                await coordinator.woken.wait()

    def _look_at_time(self, record: ServiceRecord, now: float) -> None:
        if record.service.deadline is not None and record.service.deadline <= now:
            self.coordinator.tell(record, Elapsed())
        for instance in self._standbys(record):
            if self._silent_at(instance) <= now:
                self.coordinator.tell(record, Silent(instance.process))
        self.coordinator.leave_if_empty(record)

    def _next(self, record: ServiceRecord) -> float:
        """Return the trio time of the next check."""
        deadline = math.inf if record.service.deadline is None else record.service.deadline
        emptied = math.inf if record.is_removed else self.coordinator.may_leave_at(record)
        return min([deadline, emptied, *map(self._silent_at, self._standbys(record))])

    def _silent_at(self, instance: Instance) -> float:
        return instance.heard_at + self.coordinator.settings.follow_grace

    def _standbys(self, record: ServiceRecord) -> list[Instance]:
        """Return the ready standbys that are not asking at the moment."""
        ready = [each.process for each in record.service.members if each.standing is MemberState.READY]
        instances = (record.instances.get(process) for process in ready if process != record.service.writer)
        return [instance for instance in instances if instance is not None and not instance.asking]
