"""What to do about an incident: values in, acts out.

| when | act | setting |
|---|---|---|
| its culprit is known for good, and lives | END: the process | ends_culprit |
| an Xid of the GPU says that it has to be reset | DRAIN: the GPU takes nobody | drain_on_device_fault |

Known for good is a culprit whom a proof names, or, once the incident is settled, one who was alone or is the only one left.
Each act at most once for an incident.  Who was ended by others (HOST) is not ended again, and nobody is for what the GPU did.
`terminate_client` is none of the acts: told to a server that faults, the vendor's daemon hangs (measured).

What needs no act: whoever is convicted or suspected is placed apart (blame.py), and a domain in FAULT is renewed by whoever
keeps domains.  Pure.  Prose: docs/faults.md, "What mpsd does".
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mpsd.fault import Confidence, FaultClass, Incident
from mpsd.model import ProcessId
from mpsd.policy.fault_settings import FaultSettings
from mpsd.policy.xids import must_drain


@dataclass(frozen=True, slots=True)
class End:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Drain:
    gpu: str


Act = End | Drain


def plan(incident: Incident, settings: FaultSettings, done: Collection[Act], is_culprit_alive: bool) -> tuple[Act, ...]:
    """What is to be done.  done: what has been tried for it, whatever came of it."""
    wanted = (*_against_culprit(incident, settings, is_culprit_alive), *_for_gpu(incident, settings))
    return tuple(act for act in wanted if act not in done)


def is_known(incident: Incident) -> bool:
    """Its culprit, for good."""
    return incident.culprit is not None and (incident.confidence is Confidence.PROVEN or incident.is_settled)


def _against_culprit(incident: Incident, settings: FaultSettings, is_alive: bool) -> Iterator[Act]:
    is_deed = incident.fault_class not in (FaultClass.HOST, FaultClass.DEVICE)
    if incident.culprit is not None and is_known(incident) and is_deed and is_alive and settings.ends_culprit:
        yield End(incident.culprit)


def _for_gpu(incident: Incident, settings: FaultSettings) -> Iterator[Act]:
    """Of the GPU's own incident: one of a domain holds the same Xids as an excuse."""
    drains = any(seen.xid is not None and must_drain(seen.xid, seen.text) for seen in incident.evidence)
    if settings.drain_on_device_fault and incident.gpu and not incident.domain and drains:
        yield Drain(incident.gpu)
