"""The topics of events: which subscribers get each family, and which facts only operators get.

A topic is FAMILY.WORD, as lease.created.  Only operators get a family that is not in the table, so a new family without a
row leaks nothing.  Prose: docs/protocol.md, "Events".
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from mpsd.api.authority import Peer
from mpsd.api.topic_table import TOPICS
from mpsd.errors import BadRequest
from mpsd.model.arena import Access
from mpsd.model.arena_mode import may
from mpsd.model.reach import EVERYTHING
from mpsd.wire.incidents import NAMING


class Family(Struct, frozen=True):
    """Which subscribers get the events of a family.

    owner: the fact with the owner's uid; empty: all users get the event.  by_mode: users who may read the arena get it too, by
    the facts owner_gid and mode.  private: facts for operators only.  for_operators: only operators get the event.
    """

    owner: str = ""
    by_mode: bool = False
    private: frozenset[str] = frozenset()
    for_operators: bool = False


FAMILIES: Mapping[str, Family] = {
    "lease": Family(owner="owner_uid"),
    "client": Family(owner="uid"),
    "domain": Family(),
    "fault": Family(private=frozenset({"pid", "pids", "uid", "evidence"}) | NAMING),
    "gpu": Family(),
    "blame": Family(for_operators=True),
    "arena": Family(owner="owner_uid", by_mode=True),
    "service": Family(owner="owner_uid"),
}


def family_of(topic: str) -> Family | None:
    return FAMILIES.get(topic.partition(".")[0])


def may_see(peer: Peer, topic: str, facts: Mapping[str, Any]) -> bool:
    """Return whether the peer gets the event; only operators get one that lacks the fact with its owner."""
    family = family_of(topic)
    if peer.is_operator or family is None or family.for_operators:
        return peer.is_operator
    if not family.owner:
        return True
    if facts.get(family.owner) == peer.uid:
        return peer.bound is EVERYTHING or not facts.get("for_all_users")  # as in the lists (methods/leases.py)
    return family.by_mode and _may_read(peer, facts)


def _may_read(peer: Peer, facts: Mapping[str, Any]) -> bool:
    match facts:
        case {"owner_uid": int(uid), "owner_gid": int(gid), "mode": int(mode)}:
            return may(Access.READ, mode, uid, gid, peer.uid, peer.gids)
    return False


def public_facts(topic: str, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of an event that all users may read."""
    family = family_of(topic)
    private = family.private if family else frozenset()
    return {name: value for name, value in facts.items() if name not in private}


class Patterns(Struct, frozen=True):
    """The subscribed topics, whole families (`lease.*`), or all (`*`)."""

    exact: frozenset[str]
    families: frozenset[str]
    is_all: bool

    def match(self, topic: str) -> bool:
        return self.is_all or topic in self.exact or topic.partition(".")[0] in self.families


def parse_patterns(words: Iterable[str]) -> Patterns:
    """Parse the patterns; raise BadRequest for an unknown topic or family, since a misspelt one would be silent for ever."""
    exact, families = set(), set()
    for word in set(words) - {"*"}:
        family, dot, rest = word.partition(".")
        if family not in FAMILIES or not dot or (rest != "*" and word not in TOPICS):
            known = ", ".join(f"{each}.*" for each in FAMILIES)
            raise BadRequest(f'"{word}" is not a topic; accepted: *, {known}, or one topic of these families')
        if rest == "*":
            families.add(family)
        else:
            exact.add(word)
    return Patterns(frozenset(exact), frozenset(families), "*" in set(words))
