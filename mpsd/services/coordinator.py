"""The coordinator of services: it takes events, lets services/rules/promotion.py decide, and carries the decisions out.

It never waits: from the first observation of a fault to the answer that promotes a standby, the only write is one transaction,
the arena's new writer.  Prose: docs/services.md.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from math import inf
from typing import Any

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.errors import KeeperFailed, MpsdError, NoSuchArena, Stopping, UnusablePath
from mpsd.host.process_watch import ProcessWatch
from mpsd.model.arena import Arena
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, Loss, MemberState, Phase, ServiceSettings, ServiceView
from mpsd.notify import Changed, Outbox, Signal
from mpsd.services.event_log import ServiceEvents
from mpsd.services.fault_evidence import Evidence
from mpsd.services.handover import HandoverRecord
from mpsd.services.handover_timing import note_times
from mpsd.services.members import ServiceRecord
from mpsd.services.rules.fault_fence import is_fault_of_domain
from mpsd.services.rules.promotion import decide, successor, why_nobody
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
from mpsd.services.views import is_emptied, is_protected, loss, protection, view
from mpsd.vault.arenas import Arenas

log = structlog.get_logger()
_GONE = frozenset({"removed", "expired", "evicted"})
_OF_VAULT = (UnusablePath, KeeperFailed, Stopping)  # with these errors the vault can promote no process at all


class ServiceParts(Struct, frozen=True):
    """What services use of the rest of the daemon.

    domain_of: where a process has its contexts; empty: not known.  fault_since: of a domain in FAULT, trio time.  is_contained:
    whether an exception was contained in a domain.  gpus_of: of a domain; empty: not known.  end: ends a process, its GPU work
    first; raises MpsdError.  outbox: events that wait for the decisions.  clock: seconds since the epoch.
    """

    domain_of: Callable[[ProcessId], str]
    fault_since: Callable[[str], float | None]
    is_contained: Callable[[str], bool]
    gpus_of: Callable[[str], tuple[str, ...]]
    end: Callable[[ProcessId], Awaitable[object]]
    publish: Callable[[str, Mapping[str, Any]], None]
    outbox: Outbox = field(default_factory=Outbox)
    clock: Callable[[], float] = time.time
    clock_ns: Callable[[], int] = time.monotonic_ns


class Coordinator:
    """Guards that decisions on a service are carried out, and that its arena has no other writer."""

    def __init__(
        self, vault: Arenas, around: ServiceParts, store: ServiceStore, settings: FailoverSettings
    ) -> None:
        """Load the settings of services.  Raises UnusablePath."""
        self.vault, self.around, self.settings = vault, around, settings
        self.evidence, self.telling = Evidence(), ServiceEvents(around.publish, around.outbox)
        self.ends = ProcessWatch(self._ended)
        self.entries: dict[int, ServiceRecord] = {}
        self.fence_wanted = Signal[[ServiceRecord, ProcessId]]()  # may be repeated
        self.protected = Signal[[bool]]()  # whether any service is; may be repeated
        self.process_ended = Signal[[ProcessId]]()
        self.woken = Changed()
        self._store = store
        self._grace_until = -inf  # trio time: until then members of an earlier mpsd may rejoin
        known = {arena.id: arena for arena in vault.arenas()}
        for arena_id, asked in store.load(known).items():
            self.entries[arena_id] = ServiceRecord(known[arena_id], asked, is_stored=True)

    def begin(self) -> None:
        """Begin the grace period for members of an earlier mpsd, once this one runs."""
        self._grace_until = trio.current_time() + self.settings.follow_grace
        for entry in self.entries.values():
            self._meet(entry)

    # -- services --------------------------------------------------------------------------------------------------------

    def entry(self, arena_id: int) -> ServiceRecord:
        """Return the service of an arena, creating it if needed.  Raises NoSuchArena."""
        arena = self.vault.find_id(arena_id)
        if (entry := self.entries.get(arena_id)) is None:
            entry = self.entries[arena_id] = ServiceRecord(arena, ServiceSettings())
            self._meet(entry)
        return entry

    def _meet(self, entry: ServiceRecord) -> None:
        """Start a new entry.  If the arena had a writer before, its members may have yet to rejoin after a restart of mpsd."""
        if entry.arena.generation:
            entry.service = replace(entry.service, not_before=self._grace_until, is_empty=is_emptied(entry.arena))
        if entry.arena.writer is not None:
            self.tell(entry, Writing(entry.arena.writer))

    def is_served(self, arena_id: int) -> bool:
        """Return whether the arena's service has members, or is stored and may get them back after a restart of mpsd."""
        entry = self.entries.get(arena_id)
        if entry is None:
            return False
        return bool(entry.service.members) or (entry.is_stored and trio.current_time() < self._grace_until)

    def change(self, entry: ServiceRecord, settings: ServiceSettings) -> None:
        old = entry.settings
        if entry.is_stored or settings == old or settings != replace(old, until_done=settings.until_done):
            self._store.save(entry.arena.id, settings)
            entry.is_stored = True
        entry.settings = settings
        if settings.until_done != old.until_done:
            entry.service = replace(entry.service, until_done=settings.until_done, is_done=False)
        self.tell(entry, Elapsed())

    def views(self) -> Iterator[ServiceView]:
        return (view(self.entries[arena_id]) for arena_id in sorted(self.entries))

    def leave_if_empty(self, entry: ServiceRecord) -> None:
        """Remove a service without processes, settings of its owner, or promotions that still count."""
        if not entry.is_removed and self.may_leave_at(entry) <= trio.current_time():
            self._remove(entry)

    def may_leave_at(self, entry: ServiceRecord) -> float:
        """Return when the service may be removed, in trio time; infinite while it has processes or stored settings."""
        service = entry.service
        if entry.seats or entry.is_stored or service.members or service.writer is not None:
            return inf
        return service.promoted_at + self.settings.limits.window_seconds

    def _remove(self, entry: ServiceRecord) -> None:
        entry.is_removed = True
        self.entries.pop(entry.arena.id, None)
        self._tell_protected()
        if entry.is_stored:
            try:
                self._store.forget(entry.arena.id)
            except UnusablePath as exc:  # the next mpsd forgets it
                log.error("store.failed", statement="a service that has gone", why=str(exc))
        entry.instruct()

    # -- events ----------------------------------------------------------------------------------------------------------

    def tell(self, entry: ServiceRecord, event: Event, happened_ns: int | None = None, why: str = "") -> str:
        """Apply an event and carry out what is decided; return why it was refused, without a change, or ""."""
        before = entry.service
        entry.service, decisions = decide(before, event, trio.current_time(), self.settings.limits)
        if decisions and isinstance(decisions[0], Refuse):
            return decisions[0].why
        seat = entry.seats.get(event.process) if isinstance(event, Fenced) else None
        if seat is not None and before.phase is Phase.FENCING:
            seat.dismissed = seat.dismissed or "it was fenced"
        with self.around.outbox.hold():
            note_times(entry, before, event, happened_ns, self.around.clock_ns(), self.around.clock())
            self.telling.tell(entry, before, event, why)
            for decision in decisions:
                self._carry_out(entry, decision)
            self._show(entry)
        return ""

    def see(self, seen: Observation) -> None:
        """Take an observation of a fault, as early as possible."""
        try:
            self.evidence.take(seen, self.settings.settle, self.around.clock_ns())
            if is_fault_of_domain(seen):
                with self.around.outbox.hold():
                    self.fault(seen.domain, seen.seen_ns)
        except Exception:  # the other consumers have to get the fault too
            log.exception("service.bug", domain=seen.domain)

    def fault(self, domain: str, happened_ns: int, process: ProcessId | None = None) -> None:
        """Record that all contexts of the domain are lost, or those of this process."""
        for entry in list(self.entries.values()):
            concerned = [each for each in entry.service.members if each.domain == domain and process in (None, each.process)]
            if any(each.standing is not MemberState.FAULTED for each in concerned):
                self.tell(entry, Faulted(domain, process), happened_ns)
            writer = entry.service.writer
            seat = entry.seats.get(writer) if writer is not None else None
            if seat is not None and entry.service.phase is Phase.FENCING and seat.domain == domain:
                self.fence_wanted.emit(entry, seat.process)  # the new observation may prove that it can no longer write

    def close(self, domain: str) -> None:
        """Move services out of a domain in which an exception was contained.  May be repeated."""
        for entry in list(self.entries.values()):
            if any(each.domain == domain for each in entry.service.members):
                self.tell(entry, Closing(domain))

    def _ended(self, process: ProcessId, seen_ns: int) -> None:
        try:
            self._note_end(process, seen_ns)
        except Exception:
            log.exception("service.bug", pid=process.pid)

    def _note_end(self, process: ProcessId, seen_ns: int) -> None:
        for entry in list(self.entries.values()):
            if (seat := entry.seats.get(process)) is None:
                continue
            seat.is_gone = True
            if entry.service.member(process) is not None:
                self.tell(entry, Ended(process), seen_ns)
            self._show(entry)
            self.leave_if_empty(entry)
        self.process_ended.emit(process)

    def heard_of(self, what: str, arena: Arena) -> None:
        """Take a change of an arena from the vault.  Never raises."""
        entry = self.entries.get(arena.id)
        if entry is None:
            return
        entry.arena = arena
        try:
            if what in _GONE:
                self._remove(entry)
            elif not entry.is_promoting:
                self._compare(entry)
        except Exception:
            log.exception("service.bug", service=arena.name)

    def _compare(self, entry: ServiceRecord) -> None:
        """Align the service with its arena: the vault decides the writer, the holders, and whether the arena has contents."""
        writer, arena = entry.service.writer, entry.arena
        if is_emptied(arena) != entry.service.is_empty:
            entry.is_loss_told = False
            self.tell(entry, Emptied() if is_emptied(arena) else Filled())
        if arena.writer != entry.cleared:
            entry.cleared = None
        if writer is not None and arena.writer != writer:
            self.tell(entry, Fenced(writer))
        holder = entry.service.holder
        if holder is not None and arena.writer != holder:
            self.tell(entry, Fenced(holder))
        if entry.service.writer is None and arena.writer not in (None, entry.cleared, entry.service.holder):
            self.tell(entry, Writing(arena.writer))
        for member in entry.service.members:
            if member.process not in (entry.arena.writer, *entry.arena.readers):
                entry.seats.pop(member.process, None)
                self.tell(entry, Ended(member.process))
        self._show(entry)
        self.leave_if_empty(entry)

    # -- decisions -------------------------------------------------------------------------------------------------------

    def _carry_out(self, entry: ServiceRecord, decision: Decision) -> None:
        match decision:
            case Promote(process):
                self._promote(entry, process)
            case Fence(process):
                self.telling.publish(entry, "fencing", pid=process.pid)
                self.fence_wanted.emit(entry, process)
            case Yield(process):
                self.telling.publish(entry, "yielding", pid=process.pid)
            case Keep(process):
                entry.handing = None
                self.telling.publish(entry, "kept", pid=process.pid)
            case Unserved(why):
                self._tell_unserved(entry, why)

    def _promote(self, entry: ServiceRecord, process: ProcessId) -> None:
        handing = entry.handing
        if handing is None:
            handing = entry.handing = HandoverRecord(Cause.FIRST, None, None, self.around.clock_ns())
        handing.begun_ns = self.around.clock_ns()
        fenced = entry.cleared if entry.cleared == entry.arena.writer else None
        entry.is_promoting = True
        try:
            entry.arena = self.vault.promote(entry.arena.id, process, fenced)
            entry.cleared = None
            entry.instruct()  # first: the standby waits for it
            self.vault.tell_promoted(entry.arena)
        except MpsdError as exc:
            refusal: MpsdError | None = exc
        else:
            refusal = None
        finally:
            entry.is_promoting = False
        if refusal is not None:
            self._not_promoted(entry, process, refusal)
            return
        self.around.outbox.answer_first()
        from_pid = handing.writer.pid if handing.writer else None
        self.telling.publish(entry, "promoting", to_pid=process.pid, from_pid=from_pid, cause=handing.cause.value)
        if entry.service.is_empty and not entry.is_loss_told:
            self._note_loss(entry, process, from_pid)

    def _note_loss(self, entry: ServiceRecord, process: ProcessId, from_pid: int | None) -> None:
        """Record a loss of the arena's contents: once for each, however many members fail to start anew."""
        entry.is_loss_told, entry.losses = True, entry.losses + 1
        entry.lost = lost = Loss(self.around.clock(), entry.arena.generation, process.pid, loss(from_pid))
        facts = {"pid": lost.pid, "generation": lost.generation, "why": lost.why, "losses": entry.losses}
        self.telling.publish(entry, "lost", **facts)

    def _not_promoted(self, entry: ServiceRecord, process: ProcessId, refusal: MpsdError) -> None:
        log.error("service.not_promoted", service=entry.arena.name, pid=process.pid, why=str(refusal))
        try:
            entry.arena = self.vault.find_id(entry.arena.id)
        except NoSuchArena:
            return  # the vault removes the service too
        if isinstance(refusal, _OF_VAULT):
            self.tell(entry, Postponed(process))
            return
        if (seat := entry.seats.get(process)) is not None:
            seat.dismissed = f"it could not be promoted: {refusal}"
        self.tell(entry, Failed(process), why=str(refusal))

    def fenced(self, entry: ServiceRecord, writer: ProcessId) -> None:
        """Record that a fault has torn down the killed writer's contexts: the arena need not wait for its end."""
        entry.cleared = writer
        self.tell(entry, Fenced(writer), why="a fault has ended all work of its domain")

    # -- views -----------------------------------------------------------------------------------------------------------

    def _show(self, entry: ServiceRecord) -> None:
        """Publish the new state: to pending long polls, as events, and to the tasks that wait."""
        gone = [p for p, seat in entry.seats.items() if seat.is_gone and p not in (entry.service.writer, entry.cleared)]
        for process in gone:
            del entry.seats[process]
        self._end_grace(entry)
        shared = protection(entry)
        if shared != entry.protection:
            entry.protection = shared
            if shared:
                self.telling.publish(entry, "unprotected", why=shared)
        self._correct_unserved(entry)
        dying = entry.service.writer if entry.service.phase is Phase.FENCING else entry.service.holder
        if dying is not None and successor(entry.service) is not None:
            self.vault.hurry(dying)
        self._tell_protected()
        now = replace(view(entry), revision=0)
        if now != entry.shown:
            entry.shown, entry.revision = now, entry.revision + 1
        entry.instruct()
        self.woken.notify()

    def _correct_unserved(self, entry: ServiceRecord) -> None:
        """Publish the reason again if it has changed, as when a standby is ready now, but may not be promoted yet."""
        service = entry.service
        if service.phase is not Phase.IDLE:
            entry.unserved = ""
        elif entry.unserved and (why := why_nobody(service)) != entry.unserved:
            self._tell_unserved(entry, why)

    def _tell_unserved(self, entry: ServiceRecord, why: str) -> None:
        entry.unserved = why
        self.telling.publish(entry, "unserved", why=why)

    def _tell_protected(self) -> None:
        self.protected.emit(any(map(is_protected, self.entries.values())))

    def _end_grace(self, entry: ServiceRecord) -> None:
        """End the grace period early, once every holder of the arena is a ready member."""
        service, arena = entry.service, entry.arena
        if service.not_before == -inf or not service.members:
            return
        ready = {each.process for each in service.members if each.standing is MemberState.READY}
        if all(each in ready for each in (arena.writer, *arena.readers) if each is not None):
            entry.service = replace(service, not_before=-inf)
            self.tell(entry, Elapsed())
