"""Who waits, in which order, and who goes in when something is free.

The order: urgency, then the earlier deadline, then who came first.  Urgency is the priority (0 before 1), and rises by a step
for every `aging_seconds` of waiting without end: whatever newcomers there are, the oldest is some day the most urgent.

Who does not fit is passed by others behind it that do, for `backfill_seconds`.  After that what it needs is set aside: nobody
behind it takes anything that it waits for.  So nobody starves as long as others end (tests/unit/policy/test_admission.py).
Who is held up by a bound of its own (its user's quota, its lease's places) sets that aside alone: the rest is no use to it.
Prose: docs/leases.md, "The queue".
"""

import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mpsd.model import ProcessId
from mpsd.policy.budgets import Amounts, Limits, Scope, first_blocked, shortage


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits: a lease for room, or a client to be let in.  number: order of arrival.

    hindrance: why it cannot go in whatever is free, in words; empty if nothing but room is lacking.
    """

    key: Hashable
    number: int
    priority: int
    arrived_at: float
    deadline: float | None
    amounts: Amounts
    hindrance: str = ""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One that waits, as it is shown.  lease_id: the lease that waits, or that the client's is; process: of a client."""

    position: int
    uid: int
    lease_id: int | None
    process: ProcessId | None
    reason: str
    waited_seconds: float
    deadline: float | None


class Blocked(NamedTuple):
    """The scope that has not enough for it, and what of it is set aside for those ahead."""

    scope: Scope
    aside: int


Reason = Blocked | str  # the latter: a hindrance


@dataclass(frozen=True, slots=True)
class Plan:
    """admitted: keys, in order.  reasons: of all others, why they wait."""

    admitted: tuple[Hashable, ...]
    reasons: Mapping[Hashable, Reason]


@dataclass(frozen=True, slots=True)
class Order:
    """The settings that the order depends on, and the time."""

    aging_seconds: float
    backfill_seconds: float
    now: float

    def rank(self, one: Waiting) -> tuple[float, float, int]:
        steps = max(0.0, self.now - one.arrived_at) // self.aging_seconds
        return (one.priority - steps, math.inf if one.deadline is None else one.deadline, one.number)

    def may_be_passed(self, one: Waiting) -> bool:
        return self.now - one.arrived_at < self.backfill_seconds

    def next_rise(self, one: Waiting) -> float:
        """When it becomes more urgent."""
        steps = max(0.0, self.now - one.arrived_at) // self.aging_seconds
        return one.arrived_at + (steps + 1) * self.aging_seconds


def in_order(waiting: Iterable[Waiting], order: Order) -> list[Waiting]:
    return sorted(waiting, key=order.rank)


def plan(waiting: Iterable[Waiting], limits: Limits, used: Mapping[Scope, int], order: Order) -> Plan:
    """Who goes in now, and why the others do not."""
    limit_of = functools.cache(limits.of)  # many ask for the same
    aside: dict[Scope, int] = {}
    admitted: list[Hashable] = []
    reasons: dict[Hashable, Reason] = {}
    for one in in_order(waiting, order):
        if one.hindrance:
            reasons[one.key] = one.hindrance
            continue
        blocked = first_blocked(one.amounts, limit_of, used, aside)
        if blocked is None:
            admitted.append(one.key)
            _set_aside(aside, one.amounts, None)
            continue
        reasons[one.key] = Blocked(blocked, aside.get(blocked, 0))
        if not order.may_be_passed(one) and first_blocked(one.amounts, limit_of, {}, {}) is None:
            _set_aside(aside, one.amounts, blocked)
    return Plan(tuple(admitted), reasons)


def in_words(reason: Reason, one: Waiting, limits: Limits, used: Mapping[Scope, int]) -> str:
    return reason if isinstance(reason, str) else shortage(reason.scope, one.amounts, limits, used, reason.aside)


def _set_aside(aside: dict[Scope, int], amounts: Amounts, blocked: Scope | None) -> None:
    """What it takes, or is to have, up to the level at which it is held up."""
    for scope, amount in amounts.items():
        if blocked is None or scope.level <= blocked.level:
            aside[scope] = aside.get(scope, 0) + amount


@dataclass(slots=True)
class Demand:
    """Guards the sum of what all who wait would take: who fits beside all of it competes with nobody."""

    total: dict[Scope, int] = field(default_factory=dict)

    def add(self, amounts: Amounts, sign: int = 1) -> None:
        for scope, amount in amounts.items():
            left = self.total.get(scope, 0) + sign * amount
            if left:
                self.total[scope] = left
            else:
                self.total.pop(scope, None)

    def leaves_room_for(self, amounts: Amounts, limits: Limits, used: Mapping[Scope, int]) -> bool:
        return first_blocked(amounts, limits.of, used, self.total) is None
