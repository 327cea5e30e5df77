"""What an incident comes to: the key that it convicts, and how many it hurt.  Blame, reports and logs all ask here.

Pure.  Prose: docs/faults.md, "Who did it".
"""

from collections.abc import Iterable

from mpsd.fault import Confidence, FaultClass, Incident
from mpsd.model import ProcessId
from mpsd.policy.verdict import gone_before

_BLAMELESS = frozenset({FaultClass.DEVICE, FaultClass.HOST})  # killing is nobody's habit, broken memory nobody's deed


def accused(incident: Incident) -> tuple[ProcessId, ...]:
    """The culprit, or else all suspects; nobody where the class excuses everybody."""
    if incident.fault_class in _BLAMELESS:
        return ()
    return (incident.culprit,) if incident.culprit is not None else incident.suspects


def keys(incident: Incident, processes: Iterable[ProcessId]) -> frozenset[str | None]:
    """None stands for each process whose key is not known."""
    parties = (incident.party(process) for process in processes)
    return frozenset(party.key if party is not None else None for party in parties)


def convicted_key(incident: Incident) -> str | None:
    """The one key of all accused, also where it is not known which of its processes did it; None: nobody is convicted, yet."""
    found = keys(incident, accused(incident))
    if len(found) != 1 or not (incident.is_settled or incident.confidence is Confidence.PROVEN):
        return None
    return next(iter(found))


def hurt(incident: Incident) -> int:
    """How many lost their contexts without having done it: the victims, and all suspects but the one who did it."""
    lost = {*incident.suspects} - gone_before(incident.evidence)
    return len(incident.victims) + max(0, len(lost) - 1)
