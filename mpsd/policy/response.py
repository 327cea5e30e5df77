"""What to do about an incident: values in, acts out.

"Known" is a culprit whom a proof names, or, once the incident is settled, one who was alone or is the only one left.

| when | act | setting |
|---|---|---|
| it is new; its culprit is known; it is settled | NOTIFY: opened, culprit, settled | |
| a known culprit lives | TERMINATE: `terminate_client`, as documented | culprit: terminate, end |
| the same, and that was tried | END: the process, by the safe stop (docs/ending.md) | culprit: end |
| the culprit is known, and people know it | QUARANTINE: its key has a domain to itself | quarantine |
| its domain is in FAULT for recycle_seconds, and clients linger | RECYCLE: it is renewed all the same | recycle_seconds |
| an Xid of the GPU says that it has to be reset | DRAIN: the GPU takes nobody | drain_on_device_fault |

Each act at most once for an incident.  A culprit of the class HOST has ended already and is told of, nothing else; nobody is
ended or placed apart for what the GPU did.  TERMINATE comes before END, because a signal that ends a client while a long kernel
runs ends its co-runners.  Suspects are placed apart by blame.py, which needs no act.

Pure.  Prose: docs/faults.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mpsd.fault import Confidence, FaultClass, Incident
from mpsd.model import ProcessId
from mpsd.policy.fault_settings import FaultSettings
from mpsd.policy.xids import must_drain


class Occasion(StrEnum):
    OPENED = "opened"
    CULPRIT = "culprit"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Notify:
    occasion: Occasion


@dataclass(frozen=True, slots=True)
class Terminate:
    process: ProcessId
    domain: str


@dataclass(frozen=True, slots=True)
class End:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Quarantine:
    key: str


@dataclass(frozen=True, slots=True)
class Recycle:
    domain: str


@dataclass(frozen=True, slots=True)
class Drain:
    gpu: str


Act = Notify | Terminate | End | Quarantine | Recycle | Drain


@dataclass(frozen=True, slots=True)
class Situation:
    """How things are, beside the incident.

    done: what has been tried for it, whatever came of it.  is_culprit_alive: its process is there.  fault_seconds: for how long
    its domain has been in FAULT; 0: it is not.  lingering: how many clients it has.
    """

    done: frozenset[Act] = frozenset()
    is_culprit_alive: bool = False
    fault_seconds: float = 0.0
    lingering: int = 0


def plan(incident: Incident, settings: FaultSettings, now: Situation) -> tuple[Act, ...]:
    """What is to be done that was not, in this order."""
    wanted = (*_news(incident), *_against_culprit(incident, settings, now), *_repairs(incident, settings, now))
    return tuple(act for act in dict.fromkeys(wanted) if act not in now.done)


def is_known(incident: Incident) -> bool:
    """Its culprit, for good."""
    return incident.culprit is not None and (incident.confidence is Confidence.PROVEN or incident.is_settled)


def _news(incident: Incident) -> Iterator[Act]:
    yield Notify(Occasion.OPENED)
    if is_known(incident):
        yield Notify(Occasion.CULPRIT)
    if incident.is_settled:
        yield Notify(Occasion.SETTLED)


def _against_culprit(incident: Incident, settings: FaultSettings, now: Situation) -> Iterator[Act]:
    culprit = incident.culprit
    if culprit is None or not is_known(incident) or incident.fault_class in (FaultClass.HOST, FaultClass.DEVICE):
        return
    terminate = Terminate(culprit, incident.domain)
    if now.is_culprit_alive and settings.culprit != "off":
        yield terminate
        if settings.culprit == "end" and terminate in now.done:
            yield End(culprit)
    party = incident.party(culprit)
    if settings.quarantine and party is not None:
        yield Quarantine(party.key)


def _repairs(incident: Incident, settings: FaultSettings, now: Situation) -> Iterator[Act]:
    is_stuck = now.lingering > 0 and now.fault_seconds > 0.0 and now.fault_seconds >= settings.recycle_seconds
    if incident.domain and settings.recycle_seconds and is_stuck:
        yield Recycle(incident.domain)
    drains = any(seen.xid is not None and must_drain(seen.xid, seen.text) for seen in incident.evidence)
    if settings.drain_on_device_fault and incident.gpu and not incident.domain and drains:
        yield Drain(incident.gpu)
