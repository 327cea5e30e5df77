"""Convert services to the maps of results; docs/protocol.md, "Methods", has every field."""

from mpsd.model.service import HandedOver, Instruction, MemberView, Promotion, ServiceView
from mpsd.wire.plain import plain
from mpsd.wire.results import Map, process


def instruction(of: Instruction) -> Map:
    return {
        "serial": of.serial,
        "order": of.order.value,
        "generation": of.generation,
        "layout_hash": of.layout_hash,
        "commit": of.commit,
        "state_serial": of.state_serial,
        "writer_pid": of.writer.pid if of.writer else None,
        "why": of.why,
    }


def service(of: ServiceView) -> Map:
    return {
        "id": of.id,
        "name": of.name,
        "owner_uid": of.owner_uid,
        "gpu": of.gpu,
        "phase": of.phase.value,
        "generation": of.generation,
        "writer_pid": of.writer.pid if of.writer else None,
        "revision": of.revision,
        "settings": plain(of.settings),
        "members": [_member(each) for each in of.members],
        "promotions": of.promotions,
        "last": _promotion(of.last) if of.last else None,
        "protection": of.protection,
        "losses": of.losses,
        "lost": plain(of.lost) if of.lost else None,
    }


def _member(of: MemberView) -> Map:
    return {
        **process(of.process),
        "domain": of.domain,
        "rank": of.rank,
        "standing": of.standing.value,
        "is_writer": of.is_writer,
        "is_apart": of.is_apart,
        "since_at": of.since_at,
    }


def _promotion(of: Promotion) -> Map:
    shown: Map = plain(of)
    return shown


def handed_over(of: HandedOver) -> Map:
    return {"from_pid": of.from_pid, "to_pid": of.to_pid, "seconds": of.seconds}
