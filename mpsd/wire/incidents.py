"""Incidents as the maps that results and events hold, less what whoever reads them may not know.

A reader is a uid, or None for an operator, who may know everything.  A user knows their own processes by name, and of others
that they are there; what the accused did, where all of the accused are theirs; and words for people, which may name anybody,
where everybody who is named is theirs.  docs/protocol.md, "Methods", has every field.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mpsd.fault import TEXT_CHARACTERS, Deed, Incident, Observation, Party
from mpsd.model import ProcessId
from mpsd.policy.accusation import convicted_key, hurt
from mpsd.policy.xids import meaning_of
from mpsd.wire.plain import plain
from mpsd.wire.rpc import size

Map = Mapping[str, Any]

# The facts of an incident that name somebody, or tell of the program that did it.
NAMING = frozenset({"culprit", "culprit_key", "address", "kernel", "pc", "suspects", "victims", "evidence", "deeds"})

_MOST_XIDS = 16
_NAME_CHARACTERS, _KEY_CHARACTERS = 128, 512  # of programs and containers, and of what is made of them
# A report has to fit into a datagram: so many bytes of each of its lists, from their beginnings.
_PARTIES_BYTES, _DEEDS_BYTES, _EVIDENCE_BYTES = 12_000, 8_000, 24_000
_NS = 1e9


def xid(number: int) -> Map:
    known = meaning_of(number)
    return {"number": number, "name": known.name, "meaning": known.meaning}


def is_party(of: Incident, uid: int) -> bool:
    """One of this user's processes is named in it."""
    return any(party.uid == uid for party in of.parties)


def incident_facts(of: Incident, reader: int | None = None) -> Map:
    """What a list and an event tell; numbers for the lists of a report."""
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
    """Everything of one, as far as it fits; `left_out` counts what did not."""
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
    """What of an incident a reader may know."""

    def __init__(self, of: Incident, reader: int | None) -> None:
        self._began_ns, self._reader = of.began_ns, reader
        self._parties = {party.process: party for party in of.parties}
        accused = of.suspects if of.culprit is None else (of.culprit,)
        self.has_deed = self._is_theirs(accused)  # what was done, and where: it tells of the program that did it
        self._has_words = self._is_theirs(_named(of))

    def party(self, process: ProcessId | None) -> Map | None:
        """None where there is nobody; somebody whom the reader may not know has a map of nothing."""
        if process is None:
            return None
        party = self._parties.get(process, Party(process))
        return _party(party) if self._may_know(party) else _SOMEBODY

    def key(self, key: str | None) -> str | None:
        """Of those who are accused."""
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
        """Of nobody nothing is told."""
        if self._reader is None:
            return True
        return bool(processes) and all(self._may_know(self._parties.get(process)) for process in processes)


def _named(of: Incident) -> set[ProcessId]:
    """Everybody about whom words may be."""
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
    """The first of them, within so many bytes, and how many were left out."""
    shown: list[Map | None] = []
    for each in of:
        made = show(each)
        room -= size(made)
        if room < 0:
            break
        shown.append(made)
    return shown, len(of) - len(shown)


def _cut(text: str, most: int = TEXT_CHARACTERS) -> str:
    text = plain(text)  # it may be a stranger's
    return text if len(text) <= most else f"{text[: most - 3]}..."
