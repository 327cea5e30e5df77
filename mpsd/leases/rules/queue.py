"""Order the waiting leases and clients, and decide which of them go in when room is free.

The order: urgency, then the earlier deadline, then the earlier arrival.  Urgency is the priority (0 before 1), and rises by a
step for every minute of waiting, without limit: so the oldest becomes the most urgent, however many newcomers arrive.

An entry that does not fit may be passed by entries behind it that do, for `backfill_seconds`.  After that its amounts are set
aside: no entry behind it takes them.  So no entry starves as long as others end (tests/unit/leases/rules/test_admission.py).
For an entry that waits because of its own bound (its user's quota, its lease's places), only that bound is set aside: it could
not use the other amounts.  Prose: docs/leases.md, "The queue".
"""

import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from mpsd.leases.rules.budgets import Amounts, Scope, ScopeLimits, first_blocked, shortage
from mpsd.model.process import ProcessId

AGING_SECONDS = 60.0  # after which an entry of priority 1 counts as one of priority 0 that has just come


class Waiting(Struct, frozen=True):
    """A waiting lease or client.

    number: order of arrival.  hindrance: why it cannot go in whatever is free, in words; empty if only room is lacking.
    """

    key: Hashable
    number: int
    priority: int
    arrived_at: float
    deadline: float | None
    amounts: Amounts
    hindrance: str = ""


class QueueEntry(Struct, frozen=True):
    """A waiting lease or client, for display.  lease_id: the lease, or the client's lease.  process: of a client."""

    position: int
    uid: int
    lease_id: int | None
    process: ProcessId | None
    reason: str
    waited_seconds: float
    deadline: float | None


class Blocked(NamedTuple):
    """scope: the scope without enough room.  aside: its amount that is set aside for entries ahead."""

    scope: Scope
    aside: int


Reason = Blocked | str  # the latter: a hindrance


class QueuePlan(Struct, frozen=True):
    """admitted: keys, in order.  reasons: why each of the others waits."""

    admitted: tuple[Hashable, ...]
    reasons: Mapping[Hashable, Reason]


class QueueOrder(Struct, frozen=True):
    """The setting that the order depends on, and the time."""

    backfill_seconds: float
    now: float

    def rank(self, one: Waiting) -> tuple[float, float, int]:
        steps = max(0.0, self.now - one.arrived_at) // AGING_SECONDS
        return (one.priority - steps, math.inf if one.deadline is None else one.deadline, one.number)

    def may_be_passed(self, one: Waiting) -> bool:
        return self.now - one.arrived_at < self.backfill_seconds

    def next_rise(self, one: Waiting) -> float:
        """Return the time at which the entry becomes more urgent."""
        steps = max(0.0, self.now - one.arrived_at) // AGING_SECONDS
        return one.arrived_at + (steps + 1) * AGING_SECONDS


def in_order(waiting: Iterable[Waiting], order: QueueOrder) -> list[Waiting]:
    return sorted(waiting, key=order.rank)


def plan(waiting: Iterable[Waiting], limits: ScopeLimits, used: Mapping[Scope, int], order: QueueOrder) -> QueuePlan:
    """Decide which entries go in now, and why the others do not."""
    limit_of = functools.cache(limits.of)  # many entries ask for the same
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
    return QueuePlan(tuple(admitted), reasons)


def in_words(reason: Reason, one: Waiting, limits: ScopeLimits, used: Mapping[Scope, int]) -> str:
    return reason if isinstance(reason, str) else shortage(reason.scope, one.amounts, limits, used, reason.aside)


def _set_aside(aside: dict[Scope, int], amounts: Amounts, blocked: Scope | None) -> None:
    """Set aside the amounts of an entry, up to the level of the scope where it is blocked; all amounts if it is not."""
    for scope, amount in amounts.items():
        if blocked is None or scope.level <= blocked.level:
            aside[scope] = aside.get(scope, 0) + amount


class Demand(Struct):
    """Guards the sum of the amounts of all waiting entries: an entry that fits in addition to it competes with none."""

    total: dict[Scope, int] = field(default_factory=dict)

    def add(self, amounts: Amounts, sign: int = 1) -> None:
        for scope, amount in amounts.items():
            left = self.total.get(scope, 0) + sign * amount
            if left:
                self.total[scope] = left
            else:
                self.total.pop(scope, None)

    def leaves_room_for(self, amounts: Amounts, limits: ScopeLimits, used: Mapping[Scope, int]) -> bool:
        return first_blocked(amounts, limits.of, used, self.total) is None
