"""Convert incidents and blame to JSON text and back, for the store.

This version reads the texts that it wrote; the store decides by its own version about others.  Other text raises ValueError,
KeyError or TypeError.
"""

import json
from typing import Any

from msgspec import to_builtins

from mpsd.faults.rules.blame_state import BlameState, Conviction, CrashRecord, SuspectSet
from mpsd.model.fault import Confidence, Deed, FaultClass, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId

Fields = dict[str, Any]


def incident_text(incident: Incident) -> str:
    return _json(to_builtins(incident))


def incident_of(text: str) -> Incident:
    said: Fields = json.loads(text)
    return Incident(
        **said
        | {
            "fault_class": FaultClass(said["fault_class"]),
            "confidence": Confidence(said["confidence"]),
            "culprit": _process(said["culprit"]),
            "suspects": tuple(ProcessId(**each) for each in said["suspects"]),
            "victims": tuple(ProcessId(**each) for each in said["victims"]),
            "xids": tuple(said["xids"]),
            "evidence": tuple(_observation(each) for each in said["evidence"]),
            "deeds": tuple(Deed(**each) for each in said["deeds"]),
            "parties": tuple(_party(each) for each in said["parties"]),
        }
    )


def blame_text(state: BlameState) -> str:
    return _json(to_builtins(state))


def blame_of(text: str) -> BlameState:
    said: Fields = json.loads(text)
    return BlameState(
        tuple(SuspectSet(**each | {"groups": tuple(map(tuple, each["groups"]))}) for each in said["cases"]),
        tuple(Conviction(**each | {"wider": tuple(each.get("wider", ()))}) for each in said["convictions"]),
        tuple(CrashRecord(each["key"], tuple((number, at) for number, at in each["faults"])) for each in said["records"]),
    )


def _observation(said: Fields) -> Observation:
    return Observation(
        **said
        | {
            "source": Source(said["source"]),
            "fault_class": FaultClass(said["fault_class"]),
            "process": _process(said["process"]),
            "present": tuple(ProcessId(**each) for each in said["present"]),
        }
    )


def _party(said: Fields) -> Party:
    return Party(**said | {"process": ProcessId(**said["process"])})


def _process(said: Fields | None) -> ProcessId | None:
    return None if said is None else ProcessId(**said)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
