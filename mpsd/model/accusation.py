"""Derive the convicted key and the number of victims from an incident, for blame, reports and logs.

Pure.  Prose: docs/faults.md, "Who did it".
"""

from collections.abc import Iterable

from mpsd.model.fault import Confidence, FaultClass, Incident
from mpsd.model.fault_signs import gone_before, is_contained
from mpsd.model.process import ProcessId

_BLAMELESS = frozenset({FaultClass.DEVICE, FaultClass.HOST})  # a kill or broken memory is not a client's fault


def accused(incident: Incident) -> tuple[ProcessId, ...]:
    """Return the culprit, or else all suspects; nothing if the class accuses no client."""
    if incident.fault_class in _BLAMELESS:
        return ()
    return (incident.culprit,) if incident.culprit is not None else incident.suspects


def keys(incident: Incident, processes: Iterable[ProcessId]) -> frozenset[str | None]:
    """Return the keys of the processes; None stands for each process with an unknown key."""
    parties = (incident.party(process) for process in processes)
    return frozenset(party.key if party is not None else None for party in parties)


def convicted_key(incident: Incident) -> str | None:
    """Return the one key of all accused, even if several processes have it; None if no key is convicted yet."""
    found = keys(incident, accused(incident))
    is_over = incident.is_settled or incident.confidence is Confidence.PROVEN
    if len(found) != 1 or not is_over or incident.confidence is Confidence.LIKELY:
        return None
    return next(iter(found))


def wider_keys(incident: Incident, key: str) -> tuple[str, ...]:
    """Return the keys that contain the key of an accused; the first accused process of this key decides."""
    parties = (incident.party(process) for process in accused(incident))
    return next((party.wider_keys for party in parties if party is not None and party.key == key), ())


def hurt(incident: Incident) -> int:
    """Return how many innocent clients lost their contexts: the victims, and all suspects but one."""
    if is_contained(incident.evidence):
        return len(incident.victims)
    lost = {*incident.suspects} - gone_before(incident.evidence)
    return len(incident.victims) + max(0, len(lost) - 1)
