"""The stored state of blame, and the changes that a fault, or time, makes to it.

Frozen values.  Keys are those of Party.key, so that they outlive processes and mpsd.  blame.py makes the changes.
"""

from typing import Any

from msgspec import Struct


class SuspectSet(Struct, frozen=True):
    """A set of suspected keys: one of them faults, but it is not known which.

    number: of the incident that began it.  last: of the last incident.  rounds: how often its suspects were narrowed down.
    version: how often they were split; a group of an earlier version may still have clients.  until: then they are cleared.
    since: of the first fault.  user: the wider key of the user of all its suspects; empty: they are of several, or not known.
    """

    number: int
    last: int
    rounds: int
    version: int
    groups: tuple[tuple[str, ...], ...]
    until: float
    since: float
    user: str = ""

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(key for group in self.groups for key in group)


class Conviction(Struct, frozen=True):
    """number: of the last incident that it was convicted for.  times: how often.  until: then it is released.

    forget_at: until then another conviction counts as one more.  wider: the keys that contain it, the user's last.
    """

    key: str
    number: int
    times: int
    until: float
    forget_at: float
    is_released: bool = False
    wider: tuple[str, ...] = ()

    def binds(self, now_at: float) -> bool:
        return now_at < self.until and not self.is_released


class CrashRecord(Struct, frozen=True):
    """The last incidents that a key was convicted for, and when."""

    key: str
    faults: tuple[tuple[int, float], ...]


class BlameState(Struct, frozen=True):
    """All cases, convictions and records, the oldest first."""

    cases: tuple[SuspectSet, ...] = ()
    convictions: tuple[Conviction, ...] = ()
    records: tuple[CrashRecord, ...] = ()


class Suspected(Struct, frozen=True):
    """The keys of each group are placed apart from other groups, and from all other clients."""

    case: int
    groups: tuple[tuple[str, ...], ...]


class Cleared(Struct, frozen=True):
    """These keys are no longer suspected.  why: in words for people."""

    case: int
    keys: tuple[str, ...]
    why: str


class Convicted(Struct, frozen=True):
    key: str
    number: int
    times: int
    until: float


class Released(Struct, frozen=True):
    """why: in words for people."""

    key: str
    why: str


Change = Suspected | Cleared | Convicted | Released


def event_of(change: Change) -> tuple[str, dict[str, Any]]:
    """Return the topic and the facts of the event for this change."""
    match change:
        case Convicted(key, number, times, until):
            return "blame.convicted", {"key": key, "number": number, "times": times, "until": until}
        case Suspected(case, groups):
            return "blame.suspected", {"case": case, "groups": [list(group) for group in groups]}
        case Cleared(case, keys, why):
            return "blame.cleared", {"case": case, "keys": list(keys), "why": why}
        case Released(key, why):
            return "blame.released", {"key": key, "why": why}
