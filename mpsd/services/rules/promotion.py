"""Decide which member of a service writes its arena, and which standby is promoted next.

    IDLE ──Promote──▶ PROMOTING ──promoted──▶ SERVING ──asked──▶ YIELDING
     ▲                    │                      │                  │
     │                    └──── Fence ───────────┴───── Fence ──────┤
     │                            ▼                                 │
     └────────fenced────────── FENCING ◀──too late, or it failed────┘     fenced: YIELDING ──▶ IDLE as well

A move to another GPU: YIELDING ──it has taken its last barrier, and is fenced──▶ MOVING: no member is promoted, until the
replica has replaced the service's arena, and with it this service; too late, or cancelled: IDLE.

One rule overrides all others: no member is promoted before the last process that may have written is fenced, even if that
process reports that it has stopped, or seems dead.  So a service has one `writer` from its promotion on, and no writer only
after `Fenced`.

| event | to the writer | to a standby |
|---|---|---|
| a fault in its domain | fenced at once: its results may be wrong | never promoted; it must end and join again |
| an exception was contained in its domain | asked to yield once a standby elsewhere is ready | the last to be promoted |
| it ended | fenced: the GPU may still work for it | forgotten |
| it is silent | fenced when a successor is ready; alone it continues | not promoted until it is ready again |
| it is too slow to yield | fenced when a successor is ready; alone it continues | |
| it is too slow to take over | fenced | |
| it reports that it cannot continue | fenced | |
| the vault has lost the arena | continues, also after a request to yield | cannot succeed an active that still has the memory |
| the same, in MOVING | | no member any more: it would begin anew, and the last barrier is in the newest image |
| it is too slow to take the last barrier before a move | continues | |
| it is asked to leave | asked to yield, also without a ready standby; no member any more then | |

A process that writes the arena without a promotion is its `holder`: an earlier mpsd may have promoted it, or it opened the
arena by itself.  While it writes, no member is promoted, and nothing ends it; when it joins, it serves.

Promotions count if they fail, or follow a fault, an end or silence: at most `most_promotions` in `window_seconds`.  A service
with processes that die of their own work waits, so that it does not lose every standby.  The first promotion, if no active was
lost, and a requested one count only if they fail; one that the vault could not store does not count, and is tried again.  This
module starts no process.

With `until_done`, an active that stops unasked has finished the work: no member is promoted then, unless one joins later.  An
active that is fenced has not finished it.

Values in, decisions out: `at` is in seconds of any clock that does not go back.  The types are in promotion_types.py.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase
from mpsd.services.rules.promotion_types import (
    MOST_MEMBERS,
    Asked,
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
    Finished,
    Joined,
    Keep,
    Member,
    Placed,
    Postponed,
    Promote,
    Promoted,
    PromotionLimits,
    Ready,
    Refuse,
    Service,
    Silent,
    Step,
    Taken,
    Unmoved,
    Unserved,
    Writing,
    Yield,
)

_RETRY_SECONDS = 1.0


def decide(service: Service, event: Event, at: float, limits: PromotionLimits) -> tuple[Service, tuple[Decision, ...]]:
    """Return the service after the event, and the decisions in their order.  A refusal changes nothing."""
    noted = _note(service, event, at, limits)
    if isinstance(noted, Refuse):
        return service, (noted,)
    decisions: list[Decision] = []
    for after, decision in _follow(noted, event, at, limits):
        noted = after
        if decision is not None:
            decisions.append(decision)
    if noted.phase is not Phase.YIELDING and noted.move:
        noted = replace(noted, move=Step.NONE)
    if noted.phase is Phase.IDLE and service.phase is not Phase.IDLE:
        decisions.append(Unserved(why_nobody(noted)))
    return noted, tuple(decisions)


def successor(service: Service) -> Member | None:
    """Return the member that would be promoted now: the requested standby if it is ready, else a ready one, preferably in a
    domain without faulted or silent members, then in one that does not close, then of the lowest rank.

    Return None while the serving member has memory that the vault has lost.
    """
    if service.is_empty and service.phase in (Phase.SERVING, Phase.YIELDING):
        return None
    ready = [each for each in service.members if each.standing is MemberState.READY and each.process != service.writer]
    ill = {each.domain for each in service.members if each.standing in (MemberState.FAULTED, MemberState.SILENT)}
    return min(
        ready,
        key=lambda each: (each.process != service.wish, each.domain in ill, each.is_closing, each.rank),
        default=None,
    )


def may_promote_at(service: Service, at: float, limits: PromotionLimits) -> float:
    """Return the earliest time for a promotion: `at`, or later."""
    if limits.most_promotions < 1:
        return float("inf")
    recent = [each for each in service.promotions if each > at - limits.window_seconds]
    when = at if len(recent) < limits.most_promotions else recent[-limits.most_promotions] + limits.window_seconds
    return max(when, service.not_before, service.retry_at)


def why_nobody(service: Service) -> str:
    """Return why no member of an idle service serves."""
    if service.holder is not None:
        return f"pid {service.holder.pid} writes the arena, and is not a member"
    if service.is_done:
        return "its work is done"
    if not service.members:
        return "no process is left"
    if successor(service) is None:
        return "no standby is ready"
    if service.deadline == service.retry_at:
        return "the vault could not store the next writer: mpsd tries again"
    if service.deadline == service.not_before:
        return "others may come back who go first"
    return "too many promotions within services.window_seconds: it is tried again when they are over"


# -- facts ---------------------------------------------------------------------------------------------------------------


def _note(service: Service, event: Event, at: float, limits: PromotionLimits) -> Service | Refuse:
    """Record the facts of the event, without their consequences."""
    match event:
        case Joined(process, domain, rank):
            if service.member(process) or process == service.writer:
                return Refuse(f"{process.pid} is a member already")
            if len(service.members) >= MOST_MEMBERS:
                return Refuse(f"a service has up to {MOST_MEMBERS} members")
            return _with_new(replace(service, is_done=False), Member(process, domain, rank))
        case Placed(process, domain):
            member = service.member(process)
            if member is None:
                return Refuse(f"{process.pid} is no member")
            return _with(service, replace(member, domain=domain, is_closing=False))
        case Writing(process):
            if service.writer is not None:
                return Refuse(f"{service.writer.pid} writes already")
            return replace(service, holder=process)
        case Ready(process):
            return _note_standing(service, process, MemberState.READY)
        case Silent(process):
            return _note_standing(service, process, MemberState.SILENT)
        case Faulted(domain, process):
            ill = (each for each in service.members if each.domain == domain and process in (None, each.process))
            return _with(service, *(replace(each, standing=MemberState.FAULTED) for each in ill))
        case Closing(domain):
            return _with(service, *(replace(each, is_closing=True) for each in service.members if each.domain == domain))
        case Ended(process):
            return _without(service, process)
        case Asked(is_leave=True):
            why = _why_no_handover(service)  # no promotion need follow
            return Refuse(why) if why else replace(service, wish=service.writer)
        case Asked(to, is_move):
            return _note_move(service, at, limits) if is_move else _note_wish(service, to, at, limits)
        case Taken(process):
            is_asked = service.move is Step.ASKED and process == service.writer
            return replace(service, move=Step.TAKEN) if is_asked else Refuse(f"{process.pid} was not asked for a last barrier")
        case Fenced(process) if process == service.holder:
            return replace(service, holder=None, is_lost=True)
        case Fenced(process) | Promoted(process) | Failed(process):
            if process != service.writer:
                return Refuse(f"{process.pid} is not the one that writes")
            return service
        case Finished(process):
            is_end = service.until_done and service.phase is Phase.SERVING and process == service.writer
            return replace(service, is_done=True) if is_end else Refuse(f"{process.pid} does not end the work of the service")
        case Postponed(process):
            is_begun = service.phase is Phase.PROMOTING and process == service.writer
            return service if is_begun else Refuse(f"{process.pid} had no instruction to serve")
        case Emptied() if service.phase is Phase.MOVING:
            return replace(service, is_empty=True, members=())
        case Emptied() | Filled():
            return replace(service, is_empty=isinstance(event, Emptied))
        case Elapsed() | Unmoved():
            return service


def _note_standing(service: Service, process: ProcessId, standing: MemberState) -> Service | Refuse:
    member = service.member(process)
    if member is None:
        return Refuse(f"{process.pid} is no member")
    if member.standing is MemberState.FAULTED:
        lost = f"a fault has cost {process.pid} its context: it has to end"
        return Refuse(lost) if standing is MemberState.READY else service
    return _with(service, replace(member, standing=standing))


def _note_wish(service: Service, to: ProcessId | None, at: float, limits: PromotionLimits) -> Service | Refuse:
    asked = replace(service, wish=to)
    if why := _why_no_handover(service):
        return Refuse(why)
    next_ = successor(asked)
    if next_ is None or (to is not None and next_.process != to):
        return Refuse("no standby is ready" if to is None else f"{to.pid} is not a ready standby")
    why = _why_too_many(service, at, limits)
    return Refuse(why) if why else asked


def _note_move(service: Service, at: float, limits: PromotionLimits) -> Service | Refuse:
    """If the move is cancelled late, a member of this service has to be promoted: that may not be the one too many."""
    why = _why_no_handover(service) or _why_too_many(service, at, limits)
    return Refuse(why) if why else replace(service, move=Step.ASKED)


def _why_no_handover(service: Service) -> str:
    if service.phase is not Phase.SERVING:
        return f"the service is {service.phase}: no active can hand over"
    return "the vault has lost its memory, and the one that serves has not given it again" if service.is_empty else ""


def _why_too_many(service: Service, at: float, limits: PromotionLimits) -> str:
    many = f"{limits.most_promotions} promotions occurred within {limits.window_seconds:g} seconds"
    is_now = may_promote_at(service, at, limits) <= at
    return "" if is_now else f"{many}, as many as services.most_promotions allows"


def _with_new(service: Service, member: Member) -> Service:
    """Add the member; if it is the holder of the arena, it serves."""
    if member.process != service.holder:
        return replace(service, members=(*service.members, member))
    serving = replace(service, phase=Phase.SERVING, writer=member.process, holder=None, deadline=None)
    return replace(serving, members=(*service.members, replace(member, standing=MemberState.READY)))


def _with(service: Service, *changed: Member) -> Service:
    by_process = {each.process: each for each in changed}
    return replace(service, members=tuple(by_process.get(each.process, each) for each in service.members))


def _without(service: Service, process: ProcessId) -> Service:
    left = tuple(each for each in service.members if each.process != process)
    return replace(service, members=left, wish=None if service.wish == process else service.wish)


# -- decisions -----------------------------------------------------------------------------------------------------------


def _follow(service: Service, event: Event, at: float, limits: PromotionLimits) -> Iterator[tuple[Service, Decision | None]]:
    """Yield the steps that these facts lead to, each with its decision."""
    writer, is_late = service.writer, isinstance(event, Elapsed) and service.deadline is not None and at >= service.deadline
    if writer is not None and isinstance(event, Fenced):
        service = _released(service, writer)
        if service.phase is Phase.MOVING:
            service = replace(service, deadline=at + limits.promote_seconds)
        yield service, None
    elif service.phase is Phase.MOVING and (is_late or isinstance(event, Unmoved)):
        service = replace(service, phase=Phase.IDLE, deadline=None)
        yield service, None
    elif writer is not None and isinstance(event, Postponed):
        service = replace(_uncounted(service), phase=Phase.IDLE, writer=None, wish=writer, retry_at=at + _RETRY_SECONDS)
        yield service, None
    elif writer is not None:
        service, decision = _about_writer(service, writer, event, at, limits, is_late)
        yield service, decision
    if service.phase is Phase.IDLE:
        yield _promoted_next(service, at, limits)


def _about_writer(
    service: Service, writer: ProcessId, event: Event, at: float, limits: PromotionLimits, is_late: bool
) -> tuple[Service, Decision | None]:
    if service.phase is Phase.FENCING:
        return (replace(service, deadline=at + limits.fence_seconds), Fence(writer)) if is_late else (service, None)
    if _must_go(service, writer, event, is_late):
        return replace(service, phase=Phase.FENCING, deadline=at + limits.fence_seconds), Fence(writer)
    if service.phase is Phase.PROMOTING and isinstance(event, Promoted):
        return replace(service if service.is_lost else _uncounted(service), phase=Phase.SERVING, deadline=None), None
    if service.phase is Phase.SERVING and (isinstance(event, Asked) or _should_move(service, writer, at, limits)):
        return replace(service, phase=Phase.YIELDING, deadline=at + limits.yield_seconds), Yield(writer)
    if service.phase is Phase.YIELDING and (is_late or isinstance(event, Emptied) or _is_cancelled(service, event)):
        return replace(service, phase=Phase.SERVING, wish=None, deadline=None), Keep(writer)
    return service, None


def _must_go(service: Service, writer: ProcessId, event: Event, is_late: bool) -> bool:
    member = service.member(writer)
    if member is None or member.standing is MemberState.FAULTED:
        return True
    if isinstance(event, Failed):
        return True
    if service.phase is Phase.PROMOTING:
        return is_late or member.standing is MemberState.SILENT
    is_slow = service.phase is Phase.YIELDING and is_late and not service.move
    if member.standing is MemberState.SILENT or is_slow:
        return successor(service) is not None
    return False


def _is_cancelled(service: Service, event: Event) -> bool:
    return bool(service.move) and isinstance(event, Unmoved)


def _should_move(service: Service, writer: ProcessId, at: float, limits: PromotionLimits) -> bool:
    """Return whether the writer's domain closes, and a standby in another one can take over."""
    member, next_ = service.member(writer), successor(service)
    is_better = member is not None and member.is_closing and next_ is not None and not next_.is_closing
    return is_better and may_promote_at(service, at, limits) <= at


def _released(service: Service, writer: ProcessId) -> Service:
    """Remove the writer.  One that yielded stays a member and has to warm again; one that was ended, or was asked to leave, is
    no longer a member."""
    member, is_asked = service.member(writer), service.phase is Phase.YIELDING
    if service.phase is Phase.FENCING or (is_asked and service.wish == writer):
        service = _without(service, writer)
    elif member is not None and member.standing is not MemberState.FAULTED:
        service = _with(service, replace(member, standing=MemberState.WARMING))
    is_done = service.is_done and service.phase is Phase.SERVING
    phase = Phase.MOVING if is_asked and service.move is Step.TAKEN else Phase.IDLE
    return replace(service, phase=phase, writer=None, deadline=None, is_lost=not is_asked, is_done=is_done)


def _uncounted(service: Service) -> Service:
    """Take back the last promotion from the count; every promotion is counted when it starts."""
    return replace(service, promotions=service.promotions[:-1])


def _promoted_next(service: Service, at: float, limits: PromotionLimits) -> tuple[Service, Decision | None]:
    may_serve = service.holder is None and not service.is_done
    next_, when = successor(service) if may_serve else None, may_promote_at(service, at, limits)
    if next_ is None or when > at:
        return replace(service, deadline=None if next_ is None or when == float("inf") else when), None
    recent = tuple(each for each in service.promotions if each > at - limits.window_seconds)
    promoting = replace(
        service,
        phase=Phase.PROMOTING,
        writer=next_.process,
        wish=None,
        promotions=(*recent, at),
        promoted_at=at,
        deadline=at + limits.promote_seconds,
    )
    return promoting, Promote(next_.process)
