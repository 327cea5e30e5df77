"""Decide what to do about an incident: values in, acts out.

| when | act | setting |
|---|---|---|
| its culprit is final, and lives | END: the process | ends_culprit |
| the module contained a fault of a process, and it lives | FREEZE: the process, at once | |
| the same | FINISH: the process, once its channels were stopped, or after STOPPED_SECONDS | |
| the GPU has to be reset, or NVML reports a GpuState | DRAIN: the GPU takes no new client | drain_on_device_fault |

A culprit is final if a proof names it, or, once the incident is settled, if it was alone or is the only one left.
Each act happens at most once for an incident.  A killed client (HOST) is not ended again, and a GPU fault ends no client.
`terminate_client` is not among the acts: on this command to a faulting server the vendor's daemon hangs (measured).

A client with a contained fault reads zeros until it is stopped, and would take them for results.  So it never continues, for
any value of ends_culprit, and gets no time to clean up.  No real GPU has run the module yet.

Two reactions need no act: blame.py places convicted and suspected clients apart, and mpsd/domains restores a domain in FAULT.
Pure.  Prose: docs/faults.md, "What mpsd does".
"""

from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.fault import Confidence, FaultClass, Incident, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.model.xid import must_drain

# The driver waits for each channel to be idle, for seconds, and then preempts it: one that stops sooner had little work left.
# After this time the client's work still runs, even if its channels are stopped, and has to be ended.
STOPPED_SECONDS = 1.0


class End(Struct, frozen=True):
    process: ProcessId


class Freeze(Struct, frozen=True):
    process: ProcessId


class Finish(Struct, frozen=True):
    process: ProcessId


class Drain(Struct, frozen=True):
    gpu: str


Act = End | Freeze | Finish | Drain
Lives = Callable[[ProcessId], bool]


def plan(incident: Incident, settings: FaultSettings, done: Collection[Act], is_alive: Lives) -> tuple[Act, ...]:
    """Return the acts that are due.  done: the acts that were tried for the incident, also failed ones."""
    wanted = (
        *_against_contained(incident, is_alive),
        *_against_culprit(incident, settings, is_alive),
        *_for_gpu(incident, settings),
    )
    return tuple(act for act in wanted if act not in done)


def is_known(incident: Incident) -> bool:
    """Return whether the culprit is final."""
    is_over = incident.confidence is Confidence.PROVEN or incident.is_settled
    return incident.culprit is not None and is_over and incident.confidence is not Confidence.LIKELY


def is_stopped(incident: Incident, process: ProcessId) -> bool:
    """Return whether the module reported that the driver has stopped the client's channels, or destroyed its address space.

    Neither means that its work is over: under MPS, work that has begun continues when its channels are stopped.
    """
    told = (seen for seen in incident.evidence if seen.source is Source.KMOD and seen.process == process)
    return any(seen.fault_class is FaultClass.UNKNOWN for seen in told)


def _contained(incident: Incident) -> tuple[ProcessId, ...]:
    """Return the processes with a contained fault; another culprit has a separate incident."""
    contained = (seen for seen in incident.evidence if seen.is_contained and _is_frozen(seen))
    found = dict.fromkeys(seen.process for seen in contained if seen.process is not None)
    return tuple(process for process in found if incident.culprit in (None, process))


def _is_frozen(seen: Observation) -> bool:
    """Return whether its process reads wrong data.  The culprit of a contained SM exception has its error instead."""
    return seen.source is not Source.SENTINEL


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
    """Drain only for the GPU's own incident: the incident of a domain holds the same Xids as an excuse."""
    drains = any(seen.gpu_state or (seen.xid is not None and must_drain(seen.xid, seen.text)) for seen in incident.evidence)
    if settings.drain_on_device_fault and incident.gpu and not incident.domain and drains:
        yield Drain(incident.gpu)
