"""Events and lines of the log about incidents and blame (docs/faults.md)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from mpsd.faults.rules.blame_state import Change, event_of
from mpsd.model.fault import Incident
from mpsd.wire.incidents import incident_facts

log = structlog.get_logger()
Publish = Callable[[str, Mapping[str, Any]], None]


def publish_incident(publish: Publish, before: Incident | None, incident: Incident) -> None:
    """Publish what a revision adds: first the event, since subscribers may wait for it; then the log, which takes longer."""
    facts = incident_facts(incident)
    culprit = facts["culprit"]
    if before is None:
        publish("fault.opened", facts)
        log.warning("fault.opened", number=incident.number, domain=incident.domain, gpu=incident.gpu,
                    fault_class=incident.fault_class.value)  # fmt: skip
    if incident.culprit is not None and (before is None or before.culprit != incident.culprit):
        publish("fault.culprit", facts)
        log.warning("fault.culprit", number=incident.number, domain=incident.domain, culprit=culprit,
                    confidence=incident.confidence.value)  # fmt: skip
    if incident.is_settled and not (before is not None and before.is_settled):
        publish("fault.settled", facts)
        log.info("fault.settled", number=incident.number, domain=incident.domain, culprit=culprit,
                 confidence=incident.confidence.value, key=facts["culprit_key"], hurt=facts["hurt"])  # fmt: skip


def publish_blame(publish: Publish, changes: Iterable[Change]) -> None:
    for change in changes:
        topic, facts = event_of(change)
        log.warning("blame.changed", what=topic, **facts)
        publish(topic, facts)
