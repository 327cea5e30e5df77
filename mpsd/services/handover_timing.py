"""The cause of a handover, and how long each part takes, from the events."""

from mpsd.model.service import Cause, MemberState, Phase
from mpsd.services.handover import HandoverRecord
from mpsd.services.members import ServiceRecord
from mpsd.services.rules.promotion_types import Asked, Elapsed, Ended, Event, Failed, Faulted, Fenced, Promoted, Service, Silent

_CAUSES = {Faulted: Cause.FAULT, Silent: Cause.SILENT, Asked: Cause.ASKED, Failed: Cause.FAILED}


def cause_of(event: Event, before: Service, after: Service) -> Cause:
    """Return why the writer's term has ended."""
    if isinstance(event, Elapsed):
        return Cause.ASKED if before.phase is Phase.YIELDING else Cause.FAILED
    if isinstance(event, Asked) and event.is_leave:
        return Cause.ENDED  # the next member begins when it can: its start is no part of the times of a handover
    member = before.member(before.writer)
    if after.phase is Phase.YIELDING and not isinstance(event, Asked):
        return Cause.CONTAINED
    if type(event) not in _CAUSES and member is not None and member.standing is MemberState.SILENT:
        return Cause.SILENT  # a successor is ready for the silent writer
    return _CAUSES.get(type(event), Cause.ENDED)


def note_times(record: ServiceRecord, before: Service, event: Event, happened_ns: int | None, now_ns: int, at: float) -> None:
    """Update the handover after an event: a term has ended, its writer is fenced, another one serves.

    at: seconds since the epoch.
    """
    after = record.service
    begins = after.phase is not before.phase and after.phase in (Phase.FENCING, Phase.YIELDING)
    lets_go = isinstance(event, Fenced) and event.process == before.writer
    is_asked = before.phase is Phase.YIELDING and not isinstance(event, Faulted | Ended)
    if (begins and not is_asked) or (lets_go and record.handover is None):
        record.handover = HandoverRecord(cause_of(event, before, after), before.writer, happened_ns, now_ns)
    if lets_go and record.handover is not None:
        record.handover.fenced_ns = now_ns
    if isinstance(event, Promoted) and before.phase is Phase.PROMOTING and record.handover and after.writer:
        record.last = record.handover.over(at, after.writer, record.arena.generation, now_ns)
        record.promotions += 1
        record.handover = None
