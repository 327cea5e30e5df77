"""The socket's methods for members, owners and starters; api/methods/services.py checks the privilege."""

import math
from collections.abc import Callable, Mapping, Sequence

import trio

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, KeeperFailed, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import HandedOver, Instruction, MemberState, Order, Phase, ServiceSettings, ServiceView
from mpsd.services.coordinator import Coordinator
from mpsd.services.enlistment import Enlistment
from mpsd.services.fencing import Fencing
from mpsd.services.heartbeats import Heartbeats
from mpsd.services.members import MemberProcess, ServiceRecord
from mpsd.services.rules.promotion_types import Asked, Elapsed, Ended, Failed, Finished, Joined, Promoted, Ready, Silent
from mpsd.services.server_watch import Servers
from mpsd.services.settings import FailoverSettings
from mpsd.services.views import view

_BEGIN_SECONDS = 15.0  # the keeper's contents are checked after a start


def _nobody(told: Instruction) -> None:
    pass


class ServiceRequests:
    """Guards that a process can report only for itself, and that a silent one is noticed."""

    def __init__(self, coordinator: Coordinator, enlistment: Enlistment, servers: Servers, ready: trio.Event) -> None:
        """ready: set when the vault is ready."""
        self.coordinator, self.enlistment, self._servers, self._ready = coordinator, enlistment, servers, ready
        self._begun = trio.Event()
        self._due = math.inf  # trio time of the next check
        self.fencing, self._heartbeats = Fencing(coordinator), Heartbeats(coordinator)

    def configure(self, settings: FailoverSettings) -> None:
        self.coordinator.settings = settings

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.coordinator.ends.run)
            self.enlistment.resume()
            await nursery.start(self.fencing.run)
            await self._ready.wait()  # for ever, if the vault's keeper cannot start: then no process can join
            self.coordinator.begin()
            self._begun.set()
            nursery.start_soon(self._servers.run)
            nursery.start_soon(self._heartbeats.run)
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
        coordinator.ends.watch(process)
        entry = coordinator.entry(arena_id)
        if (seat := entry.seats.get(process)) is not None:
            seat.heartbeat_seconds = heartbeat_seconds
            self._hear(entry, seat)
            return seat.told
        around = coordinator.around
        domain, now = around.domain_of(process), trio.current_time()
        told = Instruction(0, Order.STANDBY, arena.generation, arena.layout_hash, arena.state_serial, arena.writer)
        seat = MemberProcess(process, domain, around.clock_ns(), around.clock(), heartbeat_seconds, now, told)
        entry.sit(seat)
        if refused := coordinator.tell(entry, Joined(process, domain, rank)):
            del entry.seats[process]
            coordinator.leave_if_empty(entry)
            raise BadRequest(f"pid {process.pid} cannot join service {arena.name}: {refused}")
        coordinator.telling.publish(entry, "joined", pid=process.pid, domain=domain, rank=rank)
        if domain and around.fault_since(domain) is not None:
            coordinator.fault(domain, around.clock_ns(), process)
        self._servers.look()
        return seat.told

    def ready(self, arena_id: int, process: ProcessId) -> Instruction:
        entry, seat = self._seat(arena_id, process)
        seat.is_ready = True
        member = entry.service.member(process)
        if member is not None and member.standing is not MemberState.FAULTED:
            self.coordinator.tell(entry, Ready(process))
        self._hear(entry, seat)
        return seat.told

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
        entry, seat = self._seat(arena_id, process)

        def answer_what_is_new(told: Instruction) -> None:
            if after is not None and told.serial > after:
                answer(told)

        seat.asking.append(answer_what_is_new)
        try:
            self._hear(entry, seat)
            with trio.move_on_after(wait_seconds if after is not None else 0):
                while after is not None and seat.told.serial <= after and entry.seats.get(process) is seat:
                    await entry.changed.wait()
        finally:
            seat.asking.remove(answer_what_is_new)
            seat.heard_at = trio.current_time()
            if self._silent_at(seat) < self._due:
                self.coordinator.woken.notify()
        if entry.seats.get(process) is not seat:
            raise NotAllowed(f"pid {process.pid} is no longer a member of service {entry.arena.name}")
        return seat.told

    def serving(self, arena_id: int, generation: int, process: ProcessId) -> None:
        entry, _ = self._seat(arena_id, process)
        self._check_writer(entry, generation, process)
        self.coordinator.tell(entry, Promoted(process))

    def yielded(self, arena_id: int, generation: int, process: ProcessId) -> Instruction:
        """Record that the process has stopped writing.  Repeating it, also to a later mpsd, changes nothing."""
        entry, seat = self._seat(arena_id, process)
        if entry.arena.writer == process or generation > entry.arena.generation:
            self.coordinator.tell(entry, Finished(process))  # refused if mpsd asked it to yield
            self.coordinator.vault.step_down(arena_id, generation, process)
        return seat.told

    def failed(self, arena_id: int, process: ProcessId, why: str) -> None:
        entry, seat = self._seat(arena_id, process)
        seat.dismissed = seat.dismissed or f"it reported that it failed: {why}"
        event = Failed(process) if entry.service.writer == process else Ended(process)
        self.coordinator.telling.publish(entry, "failed", pid=process.pid, why=why)
        self.coordinator.tell(entry, event, self.coordinator.around.clock_ns(), why)

    def leave(self, arena_id: int, process: ProcessId) -> None:
        """End the membership; a writer has stopped writing before it calls this."""
        entry, _ = self._seat(arena_id, process)
        if entry.service.writer == process and entry.arena.writer == process:
            self.coordinator.tell(entry, Finished(process))
            self.coordinator.vault.step_down(arena_id, entry.arena.generation, process)
        entry.seats.pop(process, None)
        self.coordinator.tell(entry, Ended(process))
        self.enlistment.forget(process)
        self.coordinator.leave_if_empty(entry)

    # -- owners ----------------------------------------------------------------------------------------------------------

    async def get(self, arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
        """Return the view once its revision is above `after`, or the time is up.

        Raises NoSuchArena for an arena without a service.
        """
        entry = self._find(arena_id)
        with trio.move_on_after(wait_seconds if after is not None else 0):
            while after is not None and entry.revision <= after and not entry.is_removed:
                await entry.changed.wait()
        return view(self._find(arena_id))

    def services(self) -> Sequence[ServiceView]:
        return list(self.coordinator.views())

    async def handover(self, arena_id: int, to_pid: int | None, wait_seconds: float) -> HandedOver:
        """Return when the next member serves.  Raises ArenaBusy if no member can, or not in time; BadRequest."""
        coordinator, entry = self.coordinator, self._find(arena_id)
        name, began, from_ = entry.arena.name, trio.current_time(), entry.service.writer
        to = next((each.process for each in entry.service.members if each.process.pid == to_pid), None)
        if to_pid is not None and to is None:
            raise BadRequest(f"pid {to_pid} is not a member of service {name}")
        if refused := coordinator.tell(entry, Asked(to), coordinator.around.clock_ns()):
            raise ArenaBusy(f"service {name} cannot be handed over: {refused}")
        assert from_ is not None, "it serves"
        with trio.move_on_after(wait_seconds):
            while not entry.is_removed:
                writer, phase = entry.service.writer, entry.service.phase
                if phase is Phase.SERVING and writer == from_:
                    raise ArenaBusy(f"service {name} was not handed over: pid {from_.pid} continues, as no member is ready")
                if phase is Phase.SERVING and writer is not None:
                    return HandedOver(from_.pid, writer.pid, trio.current_time() - began)
                await entry.changed.wait()
        raise ArenaBusy(f"service {name} is not handed over yet: it is {entry.service.phase}")

    def change(self, arena_id: int, settings: ServiceSettings) -> ServiceView:
        entry = self.coordinator.entry(arena_id)
        self.coordinator.change(entry, settings)
        return view(entry)

    def settings(self, arena_id: int) -> ServiceSettings:
        entry = self.coordinator.entries.get(arena_id)
        return entry.settings if entry else ServiceSettings()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _find(self, arena_id: int) -> ServiceRecord:
        if (entry := self.coordinator.entries.get(arena_id)) is None:
            arena = self.coordinator.vault.find_id(arena_id)
            raise NoSuchArena(f"arena {arena.name} has no service")
        return entry

    def _held(self, arena_id: int, process: ProcessId) -> Arena:
        arena = self.coordinator.vault.find_id(arena_id)
        if process != arena.writer and process not in arena.readers:
            raise NotAllowed(f"pid {process.pid} has arena {arena.name} not open")
        return arena

    def _seat(self, arena_id: int, process: ProcessId) -> tuple[ServiceRecord, MemberProcess]:
        entry = self.coordinator.entries.get(arena_id)
        if entry is None or (seat := entry.seats.get(process)) is None:
            raise NotAllowed(f"pid {process.pid} has not joined the service of arena {arena_id}")
        return entry, seat

    def _check_writer(self, entry: ServiceRecord, generation: int, process: ProcessId) -> None:
        arena = entry.arena
        if arena.writer != process or entry.service.writer != process or arena.generation != generation:
            asked = f"pid {process.pid} does not serve {arena.name} in generation {generation}"
            raise StaleGeneration(f"{asked}: it is at {arena.generation}")

    # -- silence ---------------------------------------------------------------------------------------------------------

    def _hear(self, entry: ServiceRecord, seat: MemberProcess) -> None:
        """Record a sign of life from the member; a silent standby is ready again."""
        seat.heard_at = trio.current_time()
        member = entry.service.member(seat.process)
        is_back = member is not None and member.standing is MemberState.SILENT and entry.service.writer != seat.process
        if is_back and seat.is_ready:
            self.coordinator.tell(entry, Ready(seat.process))

    async def _watch_time(self) -> None:
        """Apply the deadlines of services, find standbys that have stopped asking, and remove empty services."""
        coordinator = self.coordinator
        while True:
            now, due = trio.current_time(), math.inf
            for entry in list(coordinator.entries.values()):
                if entry.service.deadline is not None and entry.service.deadline <= now:
                    coordinator.tell(entry, Elapsed())
                for seat in self._standbys(entry):
                    if self._silent_at(seat) <= now:
                        coordinator.tell(entry, Silent(seat.process))
                coordinator.leave_if_empty(entry)
                due = min(due, self._next(entry))
            self._due = due
            with trio.move_on_at(due):
                await coordinator.woken.wait()

    def _next(self, entry: ServiceRecord) -> float:
        """Return the trio time of the next check."""
        deadline = math.inf if entry.service.deadline is None else entry.service.deadline
        emptied = math.inf if entry.is_removed else self.coordinator.may_leave_at(entry)
        return min([deadline, emptied, *map(self._silent_at, self._standbys(entry))])

    def _silent_at(self, seat: MemberProcess) -> float:
        return seat.heard_at + self.coordinator.settings.follow_grace

    def _standbys(self, entry: ServiceRecord) -> list[MemberProcess]:
        """Return the ready standbys that are not asking at the moment."""
        ready = [each.process for each in entry.service.members if each.standing is MemberState.READY]
        seats = (entry.seats.get(process) for process in ready if process != entry.service.writer)
        return [seat for seat in seats if seat is not None and not seat.asking]
