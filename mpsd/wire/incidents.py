"""Convert incidents to the maps of results and events, without the facts that their reader may not see.

A reader is a uid, or None for an operator, who may see everything.  Users see the identity of their own processes, and of
others only that they are there; what the accused did, if all of the accused are theirs; and texts for people, which may name
any process, if all named processes are theirs.  docs/protocol.md, "Methods", has every field.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from mpsd.model.accusation import convicted_key, hurt
from mpsd.model.fault import TEXT_CHARACTERS, Deed, Incident, Observation, Party
from mpsd.model.process import ProcessId
from mpsd.model.xid import meaning_of
from mpsd.wire.plain import plain
from mpsd.wire.rpc import size

Map = Mapping[str, Any]

# The facts of an incident that name a process, or describe the program that caused it.
NAMING = frozenset({"culprit", "culprit_key", "address", "kernel", "pc", "suspects", "victims", "evidence", "deeds"})

_MOST_XIDS = 16
_NAME_CHARACTERS, _KEY_CHARACTERS = 128, 512  # of programs and containers, and of keys made of them
# A report has to fit into a datagram: each of its lists is cut to this number of bytes.
_PARTIES_BYTES, _DEEDS_BYTES, _EVIDENCE_BYTES = 12_000, 8_000, 24_000
_NS = 1e9


def xid(number: int) -> Map:
    known = meaning_of(number)
    return {"number": number, "name": known.name, "meaning": known.meaning}


def is_party(of: Incident, uid: int) -> bool:
    """Return whether it names one of this user's processes."""
    return any(party.uid == uid for party in of.parties)


def incident_facts(of: Incident, reader: int | None = None) -> Map:
    """Return the facts for lists and events; numbers in place of the lists of a report."""
    seen = _Seen(of, reader)
    return {
        "number": of.number,
        "revision": of.revision,
        "began_at": of.began_at,
        "is_settled": of.is_settled,
        "fault_class": of.fault_class.value,
        "gpu": of.gpu or None,
        "domain": of.domain or None,
        "confidence": of.confidence.value,
        "culprit": seen.party(of.culprit),
        "culprit_key": seen.key(convicted_key(of)),
        "suspected": len(of.suspects),
        "hurt": hurt(of),
        "xids": [xid(number) for number in of.xids[:_MOST_XIDS]],
        **_where(of, may_know=seen.has_deed),
    }


def incident_report(of: Incident, reader: int | None = None) -> Map:
    """Return the whole incident, as far as it fits; `left_out` counts the rest."""
    seen = _Seen(of, reader)
    suspects, more_suspects = _fitting(of.suspects, seen.party, _PARTIES_BYTES)
    victims, more_victims = _fitting(of.victims, seen.party, _PARTIES_BYTES)
    evidence, more_evidence = _fitting(of.evidence, seen.observation, _EVIDENCE_BYTES)
    deeds, more_deeds = _fitting(of.deeds, seen.deed, _DEEDS_BYTES)
    return {
        **incident_facts(of, reader),
        "suspects": suspects,
        "victims": victims,
        "evidence": evidence,
        "deeds": deeds,
        "left_out": more_suspects + more_victims + more_evidence + more_deeds,
    }


class _Seen:
    """The facts of an incident that a reader may see."""

    def __init__(self, of: Incident, reader: int | None) -> None:
        self._began_ns, self._reader = of.began_ns, reader
        self._parties = {party.process: party for party in of.parties}
        accused = of.suspects if of.culprit is None else (of.culprit,)
        self.has_deed = self._is_theirs(accused)  # the fault and its place: it describes the program
        self._of = of

    @cached_property
    def _has_words(self) -> bool:
        """Whether the reader may see texts; of a long incident this takes long, and lists have none."""
        return self._is_theirs(_named(self._of))

    def party(self, process: ProcessId | None) -> Map | None:
        """Return None for no process, and a map of empty values for a process that the reader may not identify."""
        if process is None:
            return None
        party = self._parties.get(process, Party(process))
        return _party(party) if self._may_know(party) else _SOMEBODY

    def key(self, key: str | None) -> str | None:
        """Return the key of the accused, if the reader may see it."""
        return _cut(key, _KEY_CHARACTERS) if key is not None and self.has_deed else None

    def observation(self, seen: Observation) -> Map:
        is_theirs = self._is_theirs(() if seen.process is None else (seen.process,))
        return {
            "source": seen.source.value,
            "after_seconds": self._after(seen.seen_ns),
            "fault_class": seen.fault_class.value,
            "gpu": seen.gpu or None,
            "domain": seen.domain or None,
            "process": self.party(seen.process),
            "is_proof": seen.is_proof,
            "clears": seen.clears,
            "xid": seen.xid,
            "present": len(seen.present),
            "text": _cut(seen.text) if self._has_words else "",
            **_where(seen, may_know=is_theirs),
        }

    def deed(self, done: Deed) -> Map:
        return {"after_seconds": self._after(done.done_ns), "text": _cut(done.text) if self._has_words else ""}

    def _after(self, moment_ns: int) -> float:
        return (moment_ns - self._began_ns) / _NS

    def _may_know(self, party: Party | None) -> bool:
        return self._reader is None or (party is not None and party.uid == self._reader)

    def _is_theirs(self, processes: Collection[ProcessId]) -> bool:
        """Return whether all these processes are the reader's; False for an empty list."""
        if self._reader is None:
            return True
        return bool(processes) and all(self._may_know(self._parties.get(process)) for process in processes)


def _named(of: Incident) -> set[ProcessId]:
    """Return all processes that texts may describe."""
    named = {of.culprit, *of.suspects, *of.victims}
    for each in of.evidence:
        named |= {each.process, *each.present}
    return {process for process in named if process is not None}


def _party(of: Party) -> Map:
    return {
        "pid": of.process.pid,
        "start_time": of.process.start_time,
        "uid": of.uid,
        "program": _cut(of.program, _NAME_CHARACTERS),
        "container": _cut(of.container, _NAME_CHARACTERS),
        "lease_id": of.lease_id,
        "key": _cut(of.key, _KEY_CHARACTERS),
    }


_SOMEBODY: Map = {
    "pid": None, "start_time": None, "uid": None, "program": "", "container": "", "lease_id": None, "key": None,
}  # fmt: skip


def _where(of: Incident | Observation, *, may_know: bool) -> Map:
    return {
        "access": of.access,
        "address": of.address if may_know else None,
        "kernel": _cut(of.kernel) if may_know else "",
        "pc": of.pc if may_know else None,
    }


def _fitting(of: Sequence[Any], show: Callable[[Any], Map | None], room: int) -> tuple[list[Map | None], int]:
    """Return the first items that fit into this number of bytes, and how many were left out."""
    shown: list[Map | None] = []
    for each in of:
        made = show(each)
        room -= size(made)
        if room < 0:
            break
        shown.append(made)
    return shown, len(of) - len(shown)


def _cut(text: str, most: int = TEXT_CHARACTERS) -> str:
    text = plain(text)  # it may come from another user
    return text if len(text) <= most else f"{text[: most - 3]}..."
