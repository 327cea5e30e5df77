"""Convert incidents and blame to JSON text and back, for the store.

This version reads the texts that it wrote; the store decides by its own version about others.  Other text raises ValueError or
MsgspecError.
"""

import json

from msgspec import convert, to_builtins

from mpsd.faults.rules.blame_state import BlameState
from mpsd.model.fault import Incident


def incident_text(incident: Incident) -> str:
    return _json(incident)


def incident_of(text: str) -> Incident:
    return convert(json.loads(text), Incident)


def blame_text(state: BlameState) -> str:
    return _json(state)


def blame_of(text: str) -> BlameState:
    return convert(json.loads(text), BlameState)


def _json(value: Incident | BlameState) -> str:
    """json writes a lone surrogate, as of a program's name; msgspec's encoder refuses it."""
    return json.dumps(to_builtins(value), separators=(",", ":"))
