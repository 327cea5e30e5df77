"""What happened in one trial, in the order of time: the sentinel's reports, mpsd's events, and the culprit's end."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpsd_client import Event

Moment = tuple[int, str]  # CLOCK_MONOTONIC, and what happened then
_WORDS = {"domain.contained": "domain closed", "gpu.drained": "GPU out of use", "service.promoted": "promoted"}


def reports_of(log: Path, since_ns: int) -> list[dict[str, Any]]:
    """Return the sentinel's reports since then, as far as mpsd has logged them."""
    lines = log.read_text(errors="replace").splitlines()
    found = [json.loads(line) for line in lines if '"sentinel.report"' in line]
    return [each for each in found if each["at_ns"] >= since_ns]


def of_reports(reports: Iterable[Mapping[str, Any]]) -> list[Moment]:
    """Return one moment for each report, but one for all looks at the clients: the last of them."""
    moments, looks = [], []
    for each in reports:
        match each["kind"]:
            case "FAULT":
                words = f"event ({each['count']} SMs, warp ESR {each['warp_esr']:#x}, global ESR {each['global_esr']:#x})"
            case "HOLDS":
                looks.append(each)
                continue
            case "STARTED" | "ARMED":  # of another sentinel
                continue
            case "FAILED":
                words = f"failed (step {each['count']}, status {each['status']})"
            case kind:
                words = kind.lower()
        moments.append((each["at_ns"], words))
    if looks:
        held = sum(each["status"] == 0 for each in looks)
        moments.append((max(each["at_ns"] for each in looks), f"{held} of {len(looks)} held"))
    return sorted(moments)


def of_events(heard: Iterable[tuple[int, Event]]) -> Iterator[Moment]:
    for heard_ns, event in heard:
        if event.topic == "fault.xid":
            yield heard_ns, f"Xid {event.facts['xid']}"
        elif event.topic == "fault.culprit":
            yield heard_ns, f"named ({event.facts['confidence']})"
        elif words := _WORDS.get(event.topic):
            yield heard_ns, words


def in_words(moments: Sequence[Moment], launched_ns: int) -> str:
    """Return one line: when the driver's event came after the launch, all else after that event."""
    zero_ns = next((at_ns for at_ns, words in sorted(moments) if words.startswith("event")), 0)
    shown = []
    for at_ns, words in sorted(moments):
        since, sign = (zero_ns, "+") if zero_ns and at_ns > zero_ns else (launched_ns, "launch+")
        shown.append(f"{words} {sign}{(at_ns - since) / 1e6:.1f}")
    return "; ".join(shown)
