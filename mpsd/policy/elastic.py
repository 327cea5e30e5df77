"""The elastic policy: shares follow need, by a multi-level feedback queue.

Level 0 is interactive, level 1 batch.  A lease starts at the level it asked for.  Feedback (`feed`): who keeps its share busy
for long is no interactive client and sinks; who rests rises; and from time to time everybody is back where it began, so that
nobody is judged for ever by what it once did.

The deal: interactive leases first get what they use and some air, up to all there is; batch takes the rest, and at least
`floor` of its parts.  A deal replaces the one in force only if what is gained by it, over the time that it is expected to
hold, is more than what moving costs: the work that those clients do not do while they start anew.  That cost is measured on
the machine and given as a parameter.  Pure: time is given.  Prose: docs/leases.md, "The elastic policy".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mpsd.lease import FULL_PERCENT
from mpsd.policy.shares import Deal, Group, Member, in_proportion

INTERACTIVE, BATCH = 0, 1
LEVELS: Mapping[str, int] = {"interactive": INTERACTIVE, "batch": BATCH}
_SAME_PERCENT = 1e-6


@dataclass(frozen=True, slots=True)
class Elastic:
    """cost_seconds: for how long a client that is moved does no work (measured).  horizon_seconds: for how long a deal is
    expected to hold.  busy, idle: above and below these fractions of its share a lease counts as busy or at rest; allotment
    and rest seconds: for how long until it sinks or rises.  boost_seconds: when everybody starts again.  air: how much more
    than it uses an interactive lease gets.  floor: the least of its parts that a lease keeps.  worth: of a percent that
    interactive work gets, where one of batch work is worth 1."""

    cost_seconds: float
    horizon_seconds: float = 60.0
    busy: float = 0.9
    idle: float = 0.5
    allotment_seconds: float = 10.0
    rest_seconds: float = 10.0
    boost_seconds: float = 300.0
    air: float = 1.5
    floor: float = 0.25
    worth: float = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a lease is in the feedback queue.  busy: the fraction of its share it used lately.  spent, rested: seconds in a row
    at this level that it was busy, or idle.  since: of the last boost."""

    home: int
    level: int
    since: float
    busy: float | None = None
    spent: float = 0.0
    rested: float = 0.0


def begin(level: str, now: float) -> Standing:
    return Standing(LEVELS[level], LEVELS[level], now)


def feed(standing: Standing, busy: float, seconds: float, now: float, settings: Elastic) -> Standing:
    """After `seconds` in which the lease's clients used this fraction of their shares."""
    if now - standing.since >= settings.boost_seconds:
        return Standing(standing.home, standing.home, now, busy)
    spent = standing.spent + seconds if busy >= settings.busy else 0.0
    rested = standing.rested + seconds if busy <= settings.idle else 0.0
    if standing.level == INTERACTIVE and spent >= settings.allotment_seconds:
        return Standing(standing.home, BATCH, standing.since, busy)
    if standing.level == BATCH and rested >= settings.rest_seconds:
        return Standing(standing.home, INTERACTIVE, standing.since, busy)
    return replace(standing, busy=busy, spent=spent, rested=rested)


def deal(group: Group, settings: Elastic) -> Deal:
    """The deal to go by: a new one if it is worth its cost, else the one in force."""
    wanted = aim(group, settings)
    if gain(group, wanted, settings) > cost(group, wanted) * settings.cost_seconds:
        return wanted
    return {member.lease_id: member.in_force for member in group.members}


def aim(group: Group, settings: Elastic) -> dict[int, float]:
    """What would be best if moving cost nothing."""
    present = [member for member in group.members if member.present]
    interactive = [member for member in present if member.level == INTERACTIVE]
    batch = [member for member in present if member.level != INTERACTIVE]
    kept = sum(member.part * member.present for member in batch) * settings.floor
    wants = {member.lease_id: _want(member, settings) for member in interactive}
    asked = sum(wants[member.lease_id] * member.present for member in interactive)
    first = min(asked, group.total - kept) if batch else group.total
    shares = {member.lease_id: member.part for member in group.members if not member.present}
    shares |= in_proportion(first, interactive, wants)
    given = sum(shares[member.lease_id] * member.present for member in interactive)
    return shares | in_proportion(group.total - given, batch, {member.lease_id: member.part for member in batch})


def gain(group: Group, wanted: Deal, settings: Elastic) -> float:
    """Percent-seconds of work, weighed by what it is worth, that the new deal allows and the one in force does not."""
    return (_served(group, wanted, settings) - _served(group, _in_force(group), settings)) * settings.horizon_seconds


def cost(group: Group, wanted: Deal) -> float:
    """Percent of work that stands still for each second that moving takes: of the running clients whose share would change."""
    moved = (member for member in group.members if abs(wanted[member.lease_id] - member.in_force) > _SAME_PERCENT)
    return sum(sum(member.held) for member in moved)


def _in_force(group: Group) -> Deal:
    """The present deal, cut to what there is: somebody may have come back whose share was dealt to others."""
    out = sum(member.in_force * member.present for member in group.members)
    cut = min(1.0, group.total / out) if out else 1.0
    return {member.lease_id: member.in_force * cut for member in group.members}


def _want(member: Member, settings: Elastic) -> float:
    """Of one part: what it uses, with air; its own part where nobody measured."""
    if member.busy is None:
        return member.part
    used = member.busy * (sum(member.held) / len(member.held) if member.held else member.in_force)
    return min(max(used * settings.air, member.part * settings.floor), FULL_PERCENT)


def _served(group: Group, shares: Deal, settings: Elastic) -> float:
    """How much of what is wanted gets its share; batch wants everything."""
    served = 0.0
    for member in group.members:
        is_interactive = member.level == INTERACTIVE
        want, worth = (_want(member, settings), settings.worth) if is_interactive else (FULL_PERCENT, 1.0)
        served += min(want, shares[member.lease_id]) * member.present * worth
    return served
