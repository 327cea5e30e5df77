"""What to do about an incident: values in, acts out.

| when | act | setting |
|---|---|---|
| its culprit is known for good, and lives | END: the process | ends_culprit |
| the module contained a fault of a process, and it lives | FREEZE: the process, at once | |
| the same | FINISH: the process, once its channels were stopped, or after STOPPED_SECONDS | |
| an Xid of the GPU says that it has to be reset | DRAIN: the GPU takes nobody | drain_on_device_fault |

Known for good is a culprit whom a proof names, or, once the incident is settled, one who was alone or is the only one left.
Each act at most once for an incident.  Who was ended by others (HOST) is not ended again, and nobody is for what the GPU did.
`terminate_client` is none of the acts: told to a server that faults, the vendor's daemon hangs (measured).

A client whose fault was contained reads zeros until it is stopped, and would take them for results.  So it never runs on,
whatever ends_culprit says, and it has no time to put its things in order.  No real GPU has run the module yet.

What needs no act: whoever is convicted or suspected is placed apart (blame.py), and a domain in FAULT is renewed by whoever
keeps domains.  Pure.  Prose: docs/faults.md, "What mpsd does".
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from mpsd.fault import Confidence, FaultClass, Incident, Source
from mpsd.model import ProcessId
from mpsd.policy.fault_settings import FaultSettings
from mpsd.policy.xids import must_drain

# The driver waits for each channel to be idle, for seconds, and preempts it then: what is stopped sooner had little left to do.
# Later the client's work still runs, whether or not its channels are stopped, and has to be ended.
STOPPED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class End:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Freeze:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Finish:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Drain:
    gpu: str


Act = End | Freeze | Finish | Drain
Lives = Callable[[ProcessId], bool]


def plan(incident: Incident, settings: FaultSettings, done: Collection[Act], is_alive: Lives) -> tuple[Act, ...]:
    """What is to be done.  done: what has been tried for it, whatever came of it."""
    wanted = (
        *_against_contained(incident, is_alive),
        *_against_culprit(incident, settings, is_alive),
        *_for_gpu(incident, settings),
    )
    return tuple(act for act in wanted if act not in done)


def is_known(incident: Incident) -> bool:
    """Its culprit, for good."""
    return incident.culprit is not None and (incident.confidence is Confidence.PROVEN or incident.is_settled)


def is_stopped(incident: Incident, process: ProcessId) -> bool:
    """The module has said that the driver has returned from stopping its channels, or that its address space there is gone.

    Neither says that its work is over: under MPS what has begun goes on when its channels are stopped.
    """
    told = (seen for seen in incident.evidence if seen.source is Source.KMOD and seen.process == process)
    return any(seen.fault_class is FaultClass.UNKNOWN for seen in told)


def _contained(incident: Incident) -> tuple[ProcessId, ...]:
    """Those of whom it contained a fault.  Of a culprit besides there is an incident of its own."""
    found = dict.fromkeys(seen.process for seen in incident.evidence if seen.is_contained and seen.process is not None)
    return tuple(process for process in found if incident.culprit in (None, process))


def _against_contained(incident: Incident, is_alive: Lives) -> Iterator[Act]:
    for process in _contained(incident):
        if is_alive(process):
            yield Freeze(process)
            yield Finish(process)


def _against_culprit(incident: Incident, settings: FaultSettings, is_alive: Lives) -> Iterator[Act]:
    culprit = incident.culprit
    is_deed = incident.fault_class not in (FaultClass.HOST, FaultClass.DEVICE)
    if culprit is None or not is_known(incident) or not is_deed or not settings.ends_culprit:
        return
    if culprit not in _contained(incident) and is_alive(culprit):
        yield End(culprit)


def _for_gpu(incident: Incident, settings: FaultSettings) -> Iterator[Act]:
    """Of the GPU's own incident: one of a domain holds the same Xids as an excuse."""
    drains = any(seen.xid is not None and must_drain(seen.xid, seen.text) for seen in incident.evidence)
    if settings.drain_on_device_fault and incident.gpu and not incident.domain and drains:
        yield Drain(incident.gpu)
