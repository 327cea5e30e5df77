"""Count events by their facts as they happen, and the times that clients waited.

Plain numbers, since clients wait while these are updated; families.py has their names for Prometheus.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from mpsd.api.event_bus import Event
from mpsd.model.domain import DomainState

MOST_VALUES = 64  # of one label from outside: each is a time series for the system that stores them
OTHER = "other"

ADMISSION_SECONDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
FENCE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PROMOTION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
PARTS = ("detect", "fence", "promote")  # of a promotion
HANDSHAKE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """How often an action took how long.  `bounds`: of the buckets, in seconds, ascending."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)  # the last: longer than any bound

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return the bounds, and how many took at most so long, as Prometheus has it."""
        found, total = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Counters(Struct):
    """Guards that each number only grows while mpsd lives, and that no label has more than MOST_VALUES values."""

    topics: Counter[str] = field(default_factory=Counter)
    admitted: Counter[str] = field(default_factory=Counter)  # by whether they had a lease
    refused: Counter[str] = field(default_factory=Counter)  # by the way
    xids: Counter[tuple[str, str]] = field(default_factory=Counter)  # by GPU and number
    domain_faults: int = 0
    vendor_restarts: int = 0
    arenas_lost: int = 0
    arenas_evicted: int = 0
    promotions: Counter[str] = field(default_factory=Counter)  # by cause
    admission: Histogram = field(default_factory=lambda: Histogram(ADMISSION_SECONDS))
    handshake: Histogram = field(default_factory=lambda: Histogram(HANDSHAKE_SECONDS))
    fence: Histogram = field(default_factory=lambda: Histogram(FENCE_SECONDS))
    promotion: Mapping[str, Histogram] = field(
        default_factory=lambda: {part: Histogram(PROMOTION_SECONDS) for part in PARTS}
    )

    def hear(self, event: Event) -> None:
        self.topics[event.topic] += 1
        if take := _TAKE.get(event.topic):
            take(self, event.facts)
        if event.facts.get("was") == DomainState.DEAD.value and event.topic != "domain.gone":
            self.vendor_restarts += 1  # in any new state: events omit short states

    def _take_admitted(self, facts: Mapping[str, Any]) -> None:
        self.admitted["no" if facts.get("lease_id") is None else "yes"] += 1

    def _take_refused(self, facts: Mapping[str, Any]) -> None:
        _count(self.refused, facts.get("way"))

    def _take_xid(self, facts: Mapping[str, Any]) -> None:
        pair = (str(facts.get("gpu") or ""), str(facts.get("xid")))
        self.xids[pair if pair in self.xids or len(self.xids) < MOST_VALUES else (OTHER, OTHER)] += 1

    def _take_domain_fault(self, facts: Mapping[str, Any]) -> None:
        self.domain_faults += 1

    def _take_arena_lost(self, facts: Mapping[str, Any]) -> None:
        self.arenas_lost += 1

    def _take_arena_evicted(self, facts: Mapping[str, Any]) -> None:
        self.arenas_evicted += 1

    def _take_fenced(self, facts: Mapping[str, Any]) -> None:
        seconds = facts.get("seconds")
        if isinstance(seconds, int | float):
            self.fence.observe(seconds)

    def _take_promoted(self, facts: Mapping[str, Any]) -> None:
        _count(self.promotions, facts.get("cause"))
        for part, histogram in self.promotion.items():
            took = facts.get(f"{part}_ms")
            if isinstance(took, int | float):
                histogram.observe(took / 1000)


def _count(counter: Counter[str], value: object) -> None:
    word = str(value)
    counter[word if word in counter or len(counter) < MOST_VALUES else OTHER] += 1


_TAKE: Mapping[str, Callable[[Counters, Mapping[str, Any]], None]] = {
    "arena.evicted": Counters._take_arena_evicted,
    "arena.fenced": Counters._take_fenced,
    "arena.lost": Counters._take_arena_lost,
    "client.admitted": Counters._take_admitted,
    "client.refused": Counters._take_refused,
    "domain.fault": Counters._take_domain_fault,
    "fault.xid": Counters._take_xid,
    "service.promoted": Counters._take_promoted,
}
