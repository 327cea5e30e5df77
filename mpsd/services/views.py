"""The views of a service, and whether a standby protects it."""

from collections import Counter

from mpsd.model.arena import Arena
from mpsd.model.service import Dealt, Elasticity, MemberState, MemberView, Phase, ServiceSettings, ServiceView, Share
from mpsd.services.members import ServiceRecord
from mpsd.services.rules.promotion import successor, why_nobody
from mpsd.services.rules.promotion_types import Service


def is_emptied(arena: Arena) -> bool:
    """Return whether the arena was committed once and is empty now: its keeper has died."""
    return arena.commit > 0 and not (arena.allocations or arena.layout_hash or arena.state_serial)


def protection(record: ServiceRecord) -> str:
    """Return why a fault would cost the service more than a moment; empty if it would not.

    Either its contents are not in the vault, or the writer and all its ready standbys are in one domain; in a service that
    wants none, a standby is only the writer's successor.
    """
    service = record.service
    writer = service.member(service.writer)
    if writer is None or service.phase not in (Phase.PROMOTING, Phase.SERVING, Phase.YIELDING):
        return ""
    if service.is_empty:
        does = "begins without them" if service.phase is Phase.PROMOTING else "has not given it again"
        return f"the vault has lost the arena's memory and forward state, and pid {writer.process.pid} {does}"
    standbys = [each for each in service.members if each.standing is MemberState.READY and each.process != writer.process]
    are_apart = any(each.domain != writer.domain for each in standbys)
    if not standbys or are_apart or not writer.domain or not record.settings.standbys:
        return ""
    return f"pid {', '.join(str(each.process.pid) for each in (writer, *standbys))} share domain {writer.domain}"


def loss(from_pid: int | None) -> str:
    """Return why a member starts anew.  from_pid: of the last writer; None: that had ended before mpsd began."""
    who = "the process that served" if from_pid is None else f"pid {from_pid}, which served,"
    return f"the vault's keeper died, and {who} stopped before it had given the memory and the forward state again"


def own_share(of: ServiceSettings, dealt: Dealt | None = None) -> Share | None:
    """Return the share of an elastic service: that of its settings, unless another one was dealt; None: it has none to move."""
    if of.elastic is Elasticity.OFF or not of.sm_percent:
        return None
    return Share(dealt.sm_percent if dealt else of.sm_percent, level=of.elastic.value)


def changed_to(record: ServiceRecord, percent: float | None, ticks: int) -> Dealt | None:
    """Return what is dealt once its share is this one; None: its members had none before, or will have none."""
    before = record.share.sm_percent if record.share else record.settings.sm_percent
    if not percent or not before:
        return None
    return record.dealt if percent == before else Dealt(percent, before, ticks)


def is_protected(record: ServiceRecord) -> bool:
    """Return whether a standby would take over if a fault ended the writer, or the writer is being fenced."""
    service = record.service
    return service.writer is not None and successor(service) is not None and not protection(record)


def is_end_awaited(record: ServiceRecord) -> bool:
    """Return whether a member waits for the writer's end: it is ready, or there is nothing that it could adopt before."""
    others = [each for each in record.service.members if each.process != record.service.writer]
    is_empty = not record.arena.layout_hash
    return successor(record.service) is not None or (is_empty and any(each.standing is MemberState.WARMING for each in others))


def view(record: ServiceRecord) -> ServiceView:
    arena, service = record.arena, record.service
    return ServiceView(
        arena.id,
        arena.name,
        arena.owner_uid,
        arena.gpu,
        service.phase,
        arena.generation,
        service.writer or service.holder,
        record.revision,
        record.settings,
        _members(record),
        record.promotions,
        record.last,
        _unserved(service) or record.protection or _alone(service),
        record.losses,
        record.lost,
        record.share,
        move=None if record.move is None else record.move.view(),
    )


def _unserved(service: Service) -> str:
    """Return why the service has no writer; empty if it has one."""
    match service.phase:
        case Phase.IDLE:
            return f"no member serves: {why_nobody(service)}"
        case Phase.FENCING if service.writer is not None:
            return f"no member serves: pid {service.writer.pid} is being fenced"
        case Phase.PROMOTING if service.writer is not None:
            return f"no member serves: pid {service.writer.pid} is taking over"
        case Phase.MOVING:
            return "no member serves: the replica on another GPU copies the last barrier"
    return ""


def _alone(service: Service) -> str:
    standbys = [each for each in service.members if each.process != service.writer]
    if service.writer is None or any(each.standing is MemberState.READY for each in standbys):
        return ""
    return "no standby is ready" if standbys else "it has no standby"


def _members(record: ServiceRecord) -> tuple[MemberView, ...]:
    members = record.service.members
    crowd = Counter(each.domain for each in members if each.domain)
    return tuple(
        MemberView(
            each.process,
            each.domain,
            each.rank,
            each.standing,
            each.process == record.service.writer,
            crowd[each.domain] <= 1,
            record.instances[each.process].since_at if each.process in record.instances else 0.0,
        )
        for each in members
    )
