"""The coordinator of services: it takes events, lets services/rules/promotion.py decide, and carries the decisions out.

It never waits: from the first observation of a fault to the answer that promotes a standby, the only write is one transaction,
the arena's new writer.  Prose: docs/services.md.
"""

from math import inf

import structlog
import trio
from msgspec.structs import replace

from mpsd.errors import KeeperFailed, MpsdError, NoSuchArena, Stopping, UnusablePath
from mpsd.host.process_watch import ProcessWatch
from mpsd.model.arena import Arena
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, Loss, MemberState, Phase, ServiceSettings
from mpsd.notify import Changed, Signal
from mpsd.services.actives import Actives
from mpsd.services.event_log import ServiceEvents
from mpsd.services.fault_evidence import Evidence
from mpsd.services.guard import guarded
from mpsd.services.handover import HandoverRecord
from mpsd.services.handover_timing import note_times
from mpsd.services.members import ServiceRecord
from mpsd.services.parts import ServiceParts
from mpsd.services.registry import ServiceRegistry
from mpsd.services.rules.fault_fence import is_fault_of_domain
from mpsd.services.rules.promotion import decide, why_nobody
from mpsd.services.rules.promotion_types import (
    Closing,
    Decision,
    Elapsed,
    Emptied,
    Ended,
    Event,
    Failed,
    Faulted,
    Fence,
    Fenced,
    Filled,
    Keep,
    Postponed,
    Promote,
    Refuse,
    Unserved,
    Writing,
    Yield,
)
from mpsd.services.settings import FailoverSettings
from mpsd.services.store import ServiceStore
from mpsd.services.views import changed_to, is_emptied, is_end_awaited, is_protected, loss, own_share, protection, view
from mpsd.vault.arenas import Arenas

log = structlog.get_logger()
_GONE = frozenset({"removed", "expired", "evicted"})
_OF_VAULT = (UnusablePath, KeeperFailed, Stopping)  # with these errors the vault can promote no process at all


class Coordinator:
    """Guards that decisions on a service are carried out, and that its arena has no other writer."""

    def __init__(
        self, vault: Arenas, parts: ServiceParts, store: ServiceStore, settings: FailoverSettings, registry: ServiceRegistry
    ) -> None:
        """Load the settings of services.  Raises UnusablePath."""
        self.vault, self.parts, self.settings = vault, parts, settings
        self.evidence, self.events = Evidence(), ServiceEvents(parts.publish, parts.outbox)
        self.process_watch = ProcessWatch(self._ended, parts.ranges)
        self.registry, self.records = registry, registry.records
        self.fence_wanted = Signal[[ServiceRecord, ProcessId]]()  # may be repeated
        self.protected = Signal[[bool]]()  # whether any service is; may be repeated
        self.process_ended, self.woken = Signal[[ProcessId]](), Changed()
        known = {arena.id: arena for arena in vault.arenas()}
        self.store, self.actives, self._protected = store, Actives(store, known), set[int]()  # the last: ids of arenas
        for arena_id, (asked, dealt) in store.load(known).items():
            self.records[arena_id] = ServiceRecord(known[arena_id], asked, True, share=own_share(asked, dealt), dealt=dealt)

    def begin(self) -> None:
        """Begin the grace period for members of an earlier mpsd, once this one runs."""
        self.registry.grace_until = trio.current_time() + self.settings.follow_grace
        for record in self.records.values():
            with guarded(record):
                self._meet(record)

    # -- services --------------------------------------------------------------------------------------------------------

    def record(self, arena_id: int) -> ServiceRecord:
        """Return the service of an arena, creating it if needed.  Raises NoSuchArena."""
        arena = self.vault.find_id(arena_id)
        if (record := self.records.get(arena_id)) is None:
            record = self.records[arena_id] = ServiceRecord(arena, ServiceSettings())
            self._meet(record)
        return record

    def _meet(self, record: ServiceRecord) -> None:
        """Start a new record.  If the arena had a writer before, its members may have yet to rejoin after a restart of mpsd."""
        if record.arena.generation:
            record.service = replace(record.service, not_before=self.registry.grace_until, is_empty=is_emptied(record.arena))
        if record.arena.writer is not None:
            self.tell(record, Writing(record.arena.writer))

    def change(self, record: ServiceRecord, settings: ServiceSettings) -> None:
        old = record.settings
        share, dealt = record.share, record.dealt
        if (old.elastic, old.sm_percent) != (settings.elastic, settings.sm_percent):
            share, dealt = own_share(settings), changed_to(record, settings.sm_percent, self.parts.ticks())
        if record.is_stored or settings == old or settings != replace(old, until_done=settings.until_done):
            self.store.save(record.arena.id, settings, dealt)
            record.is_stored = True
        record.settings, record.share, record.dealt = settings, share, dealt
        if settings.until_done != old.until_done:
            record.service = replace(record.service, until_done=settings.until_done, is_done=False)
        self.tell(record, Elapsed())

    def leave_if_empty(self, record: ServiceRecord) -> None:
        """Remove a service without processes, its owner's settings, or promotions that still count."""
        if not record.is_removed and self.may_leave_at(record) <= trio.current_time():
            self._remove(record)

    def may_leave_at(self, record: ServiceRecord) -> float:
        """Return when the service may be removed, in trio time; never while it has processes, stored settings, or moves."""
        service, is_moving = record.service, record.move is not None and record.move.is_under_way
        if record.instances or record.is_stored or service.members or service.writer is not None or is_moving:
            return inf
        return service.promoted_at + self.settings.limits.window_seconds

    def _remove(self, record: ServiceRecord) -> None:
        record.is_removed = True
        self.records.pop(record.arena.id, None)
        self._tell_protected(record)
        self.actives.note(record)
        if record.is_stored:
            try:
                self.store.forget(record.arena.id)
            except UnusablePath as exc:  # the next mpsd forgets it
                log.error("store.failed", statement="a service that has gone", why=str(exc))
        record.instruct()

    # -- events ----------------------------------------------------------------------------------------------------------

    def tell(self, record: ServiceRecord, event: Event, happened_ns: int | None = None, why: str = "") -> str:
        """Apply an event and carry out what is decided; return why it was refused, without a change, or ""."""
        before = record.service
        record.service, decisions = decide(before, event, trio.current_time(), self.settings.limits)
        if decisions and isinstance(decisions[0], Refuse):
            return decisions[0].why
        instance = record.instances.get(event.process) if isinstance(event, Fenced) else None
        if instance is not None and record.service.member(instance.process) is None:
            why_not = "it was fenced" if before.phase is Phase.FENCING else "it was asked to leave"
            instance.dismissed = instance.dismissed or why_not
        with self.parts.outbox.hold():
            note_times(record, before, event, happened_ns, self.parts.clock_ns(), self.parts.clock())
            self.events.tell(record, before, event, why)
            for decision in decisions:
                self._carry_out(record, decision)
            self.show(record)
        return ""

    def see(self, seen: Observation) -> None:
        """Take an observation of a fault, as early as possible."""
        with guarded(domain=seen.domain):  # the other consumers have to get the fault too
            self.evidence.take(seen, self.settings.settle, self.parts.clock_ns())
            if is_fault_of_domain(seen):
                with self.parts.outbox.hold():
                    self.fault(seen.domain, seen.seen_ns)

    def fault(self, domain: str, happened_ns: int, process: ProcessId | None = None) -> None:
        """Record that all contexts of the domain are lost, or those of this process."""
        for record in list(self.records.values()):
            with guarded(record, domain=domain):
                self._fault(record, domain, happened_ns, process)

    def _fault(self, record: ServiceRecord, domain: str, happened_ns: int, process: ProcessId | None) -> None:
        concerned = [each for each in record.service.members if each.domain == domain and process in (None, each.process)]
        if any(each.standing is not MemberState.FAULTED for each in concerned):
            self.tell(record, Faulted(domain, process), happened_ns)
        writer = record.service.writer
        instance = record.instances.get(writer) if writer is not None else None
        if instance is not None and record.service.phase is Phase.FENCING and instance.domain == domain:
            self.fence_wanted.emit(record, instance.process)  # the new observation may prove that it can no longer write

    def close(self, domain: str) -> None:
        """Move services out of a domain in which an exception was contained.  May be repeated."""
        for record in list(self.records.values()):
            if any(each.domain == domain for each in record.service.members):
                with guarded(record, domain=domain):
                    self.tell(record, Closing(domain))

    def _ended(self, process: ProcessId, seen_ns: int) -> None:
        for record in list(self.records.values()):
            if (instance := record.instances.get(process)) is None:
                continue
            instance.is_gone = True
            with guarded(record, pid=process.pid):
                if record.service.member(process) is not None:
                    self.tell(record, Ended(process), seen_ns)
                self.show(record)
                self.leave_if_empty(record)
        with guarded(pid=process.pid):
            self.process_ended.emit(process)

    def heard_of(self, what: str, arena: Arena) -> None:
        """Take a change of an arena from the vault.  Never raises."""
        if (record := self.records.get(arena.id)) is None:
            return
        record.arena = arena
        with guarded(record):
            if what in _GONE:
                self._remove(record)
            elif not record.is_promoting:
                self._compare(record)

    def _compare(self, record: ServiceRecord) -> None:
        """Align the service with its arena: the vault decides the writer, the holders, and whether the arena has contents."""
        writer, arena = record.service.writer, record.arena
        if is_emptied(arena) != record.service.is_empty:
            record.is_loss_told = False
            self.tell(record, Emptied() if is_emptied(arena) else Filled())
        if arena.writer != record.cleared:
            record.cleared = None
        if writer is not None and arena.writer != writer:
            self.tell(record, Fenced(writer))
        holder = record.service.holder
        if holder is not None and arena.writer != holder:
            self.tell(record, Fenced(holder))
        if record.service.writer is None and arena.writer not in (None, record.cleared, record.service.holder):
            self.tell(record, Writing(arena.writer))
        for member in record.service.members:
            if member.process not in (record.arena.writer, *record.arena.readers):
                record.instances.pop(member.process, None)
                self.tell(record, Ended(member.process))
        self.show(record)
        self.leave_if_empty(record)

    # -- decisions -------------------------------------------------------------------------------------------------------

    def _carry_out(self, record: ServiceRecord, decision: Decision) -> None:
        match decision:
            case Promote(process):
                self._promote(record, process)
            case Fence(process):
                self.events.publish(record, "fencing", pid=process.pid)
                self.fence_wanted.emit(record, process)
            case Yield(process):
                self.events.publish(record, "yielding", pid=process.pid)
            case Keep(process):
                record.handover = None
                self.events.publish(record, "kept", pid=process.pid)
            case Unserved(why):
                self._tell_unserved(record, why)

    def _promote(self, record: ServiceRecord, process: ProcessId) -> None:
        handover = record.handover
        if handover is None:
            handover = record.handover = HandoverRecord(Cause.FIRST, None, None, self.parts.clock_ns())
        handover.begun_ns = self.parts.clock_ns()
        fenced = record.cleared if record.cleared == record.arena.writer else None
        record.is_promoting = True
        try:
            record.arena = self.vault.promote(record.arena.id, process, fenced)
            record.cleared = None
            record.instruct()  # first: the standby waits for it
            self.vault.tell_promoted(record.arena)
        except MpsdError as exc:
            refusal: MpsdError | None = exc
        else:
            refusal = None
        finally:
            record.is_promoting = False
        if refusal is not None:
            self._not_promoted(record, process, refusal)
            return
        self.parts.outbox.answer_first()
        from_pid = handover.writer.pid if handover.writer else None
        self.events.publish(record, "promoting", to_pid=process.pid, from_pid=from_pid, cause=handover.cause.value)
        if record.service.is_empty and not record.is_loss_told:
            self._note_loss(record, process, from_pid)

    def _note_loss(self, record: ServiceRecord, process: ProcessId, from_pid: int | None) -> None:
        """Record a loss of the arena's contents: once for each, however many members fail to start anew."""
        record.is_loss_told, record.losses = True, record.losses + 1
        record.lost = lost = Loss(self.parts.clock(), record.arena.generation, process.pid, loss(from_pid))
        facts = {"pid": lost.pid, "generation": lost.generation, "why": lost.why, "losses": record.losses}
        self.events.publish(record, "lost", **facts)

    def _not_promoted(self, record: ServiceRecord, process: ProcessId, refusal: MpsdError) -> None:
        log.error("service.not_promoted", service=record.arena.name, pid=process.pid, why=str(refusal))
        try:
            record.arena = self.vault.find_id(record.arena.id)
        except NoSuchArena:
            return  # the vault removes the service too
        if isinstance(refusal, _OF_VAULT):
            self.tell(record, Postponed(process))
            return
        if (instance := record.instances.get(process)) is not None:
            instance.dismissed = f"it could not be promoted: {refusal}"
        self.tell(record, Failed(process), why=str(refusal))

    def fenced(self, record: ServiceRecord, writer: ProcessId) -> None:
        """Record that a fault has torn down the killed writer's contexts: the arena need not wait for its end."""
        record.cleared = writer
        self.tell(record, Fenced(writer), why="a fault has ended all work of its domain")

    # -- views -----------------------------------------------------------------------------------------------------------

    def show(self, record: ServiceRecord) -> None:
        """Publish the new state: to pending long polls, as events, and to the tasks that wait."""
        kept = (record.service.writer, record.cleared)
        for process in [p for p, instance in record.instances.items() if instance.is_gone and p not in kept]:
            del record.instances[process]
        self._end_grace(record)
        shared = protection(record)
        if shared != record.protection:
            record.protection = shared
            if shared:
                self.events.publish(record, "unprotected", why=shared)
        self._correct_unserved(record)
        dying = record.service.writer if record.service.phase is Phase.FENCING else record.service.holder
        if dying is not None and is_end_awaited(record):
            self.vault.hurry(dying)
        self._tell_protected(record)
        now = replace(view(record), revision=0)
        if now != record.shown:
            record.shown, record.revision = now, record.revision + 1
        record.instruct()
        self.actives.note(record)
        self.woken.notify()

    def _correct_unserved(self, record: ServiceRecord) -> None:
        """Publish the reason again if it has changed, as when a standby is ready now, but may not be promoted yet."""
        service = record.service
        if service.phase is not Phase.IDLE:
            record.unserved = ""
        elif record.unserved and (why := why_nobody(service)) != record.unserved:
            self._tell_unserved(record, why)

    def _tell_unserved(self, record: ServiceRecord, why: str) -> None:
        record.unserved = why
        self.events.publish(record, "unserved", why=why)

    def _tell_protected(self, record: ServiceRecord) -> None:
        """Emit whether any service is protected.  Only this one may have changed, and a user may have hundreds."""
        (self._protected.add if is_protected(record) and not record.is_removed else self._protected.discard)(record.arena.id)
        self.protected.emit(bool(self._protected))

    def _end_grace(self, record: ServiceRecord) -> None:
        """End the grace period early, once every holder of the arena is a ready member."""
        service, arena = record.service, record.arena
        if service.not_before == -inf or not service.members:
            return
        ready = {each.process for each in service.members if each.standing is MemberState.READY}
        if all(each in ready for each in (arena.writer, *arena.readers) if each is not None):
            record.service = replace(service, not_before=-inf)
            self.tell(record, Elapsed())
