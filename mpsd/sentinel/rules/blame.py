"""Decide what the reports of a sentinel after an exception say about the domain's clients.

| clients with the program counter in a mapping | result |
|---|---|
| one, and all clients were looked at | it is the culprit, proven: if all are of one user and container (faults/incidents.py) |
| several | each is a suspect; the others are cleared |
| one or none, and some could not be looked at; or no program counter, as after a trap | all are suspects |

Unified addresses follow ASLR, so the counter lies in the culprit's mappings: 53 of 53 (H200, docs/sentinel.md).  A program that
wants to can execute at an address that it has not mapped, and that another client has.
"""

from collections.abc import Iterable, Mapping

from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.sentinel.messages import SentinelReport


def exception_seen(report: SentinelReport, domain: str, gpu: str) -> Observation:
    """Return the observation of the exception itself; it names no process."""
    place = f"at PC {report.pc:#x}" if report.pc else "without a program counter"
    text = f"an SM exception {place}, on {report.count} SMs, warp ESR {report.warp_esr:#x}, global ESR {report.global_esr:#x}"
    return _of_sentinel(report, domain, gpu, text)


def containment_failed(report: SentinelReport, domain: str, gpu: str) -> Observation:
    """Return the observation that the exception was not contained after all."""
    return _of_sentinel(report, domain, gpu, f"the exception was not contained: {report.why}", is_contained=False)


def judge_clients(
    fault: SentinelReport, holds: Mapping[ProcessId, SentinelReport], clients: Iterable[ProcessId], domain: str, gpu: str
) -> list[Observation]:
    """Return what the looks at the clients show."""
    looked = {process: holds[process] for process in clients if process in holds and holds[process].status == 0}
    having = [process for process, report in looked.items() if report.is_culprit]
    if not fault.pc or not having or (len(having) == 1 and len(looked) < len(list(clients))):
        return []
    if len(having) == 1:
        text = f"the program counter {fault.pc:#x} lies in a mapping of pid {having[0].pid} alone"
        return [_of_sentinel(fault, domain, gpu, text, having[0], is_proof=True)]
    cleared = (process for process in looked if process not in having)
    text = f"the program counter {fault.pc:#x} lies in no mapping of pid"
    return [_of_sentinel(fault, domain, gpu, f"{text} {process.pid}", process, clears=True) for process in cleared]


def _of_sentinel(
    report: SentinelReport,
    domain: str,
    gpu: str,
    text: str,
    process: ProcessId | None = None,
    *,
    is_contained: bool = True,
    is_proof: bool = False,
    clears: bool = False,
) -> Observation:
    return Observation(
        Source.SENTINEL,
        report.time_ns,
        FaultClass.SM,
        gpu=gpu,
        domain=domain,
        process=process,
        is_proof=is_proof,
        clears=clears,
        pc=report.pc or None,
        text=text,
        is_contained=is_contained,
    )
