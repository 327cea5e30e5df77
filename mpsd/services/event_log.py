"""The log records and events of services."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from mpsd.model.arena import Arena
from mpsd.model.service import Phase
from mpsd.notify import Outbox, Signal
from mpsd.services.members import MOVE_ASKED, ServiceRecord
from mpsd.services.rules.promotion_types import Ended, Event, Fenced, Placed, Promoted, Ready, Service, Silent

log = structlog.get_logger()
_LET_GO = "it has let go, or has ended with all its work on the GPU"
_LOUD = frozenset(
    {"unserved", "unprotected", "lost", "silent", "fencing", "failed", "behind", "unreplicated", "moved", "unmoved"}
)


class ServiceEvents:
    """Guards that decisions are carried out before they are logged and published, which takes longer.  The order is kept.

    moved: a service has left this GPU without a request, and for people where it went, and what was lost."""

    def __init__(self, publish: Callable[[str, Mapping[str, Any]], None], outbox: Outbox) -> None:
        self._publish, self._outbox = publish, outbox
        self.moved = Signal[[str, str]]()

    def publish(self, record: ServiceRecord, what: str, **facts: object) -> None:
        self._outbox.put(partial(self._say, record.arena, what, facts))

    def publish_moved(self, record: ServiceRecord, *, has_gpu_failed: bool, **facts: Any) -> None:
        """Publish that the service has moved.  has_gpu_failed: mpsd saw its GPU fail itself, and no process alone says so."""
        self.publish(record, "moved", **facts)
        if has_gpu_failed and facts["why"] != MOVE_ASKED:
            text = f"service {record.arena.name} of user {record.arena.owner_uid} {_moved(facts)}"
            self._outbox.put(partial(self.moved.emit, facts["from_gpu"], text))

    def _say(self, arena: Arena, what: str, facts: Mapping[str, Any]) -> None:
        if what in _LOUD:
            log.warning("service.event", what=what, service=arena.name, owner_uid=arena.owner_uid, **facts)
        else:
            log.info("service.event", what=what, service=arena.name, owner_uid=arena.owner_uid, **facts)
        whose = {"id": arena.id, "name": arena.name, "owner_uid": arena.owner_uid}
        self._publish(f"service.{what}", {**whose, **facts})

    def tell(self, record: ServiceRecord, before: Service, event: Event, why: str) -> None:
        """Publish the event, before its consequences are carried out."""
        member = record.service.member(getattr(event, "process", None))
        match event:
            case Ready(process) if member != before.member(process):
                self.publish(record, "ready", pid=process.pid)
            case Silent(process) if member != before.member(process):
                self.publish(record, "silent", pid=process.pid)
            case Ended(process) if before.member(process) is not None:
                self.publish(record, "left", pid=process.pid)
            case Fenced(process):
                self.publish(record, "fenced", pid=process.pid, why=why or _LET_GO)
            case Promoted() if before.phase is Phase.PROMOTING and record.last is not None:
                last = record.last
                facts = {name: getattr(last, name) for name in ("from_pid", "to_pid", "generation", "detect_ms", "fence_ms")}
                self.publish(record, "promoted", cause=last.cause.value, **facts, promote_ms=last.promote_ms)
            case Placed(process, domain):
                log.debug("service.placed", pid=process.pid, domain=domain)


def _moved(facts: Mapping[str, Any]) -> str:
    """Return what a move has lost, in words."""
    at, steps = facts["at"], facts["steps"]  # of the image from which it goes on
    unlike = {None: "How many publishes are lost is not known", 0: "No publish is lost"}
    lost = unlike.get(steps, f"Publishes lost at most: {steps}")
    clock = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 10) % 10}"
    image = f"it goes on from its image of {clock}, and the bound was {facts['bound']:g} s"
    return f"was moved to {facts['to_gpu']}, where pid {facts['pid']} serves: {facts['why']}. {lost}: {image}"
