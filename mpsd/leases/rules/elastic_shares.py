"""The elastic policy: shares follow need, by a multi-level feedback queue.

Level 0 is interactive, level 1 batch. A lease starts at the level it asked for. Feedback (`feed`): a client that keeps its
share busy for long is not interactive and sinks; an idle one rises; and from time to time all return to their first level:
past use does not count for ever.

The members of a group are leases, which move at their next start, or services, which mpsd moves while they run
(services/elastic.py). The deal: interactive members first get their recent use and a margin, up to the whole total; batch
takes the rest, and at least `floor` of its parts. A new deal replaces the one in force only if its gain, over the time that
it is expected to hold, exceeds the cost of moving: the lost work of the moved clients while they restart. That cost is
measured for each member, or else given as a parameter. Pure: time is given. Prose: docs/leases.md, "The elastic policy".
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from mpsd.leases.rules.group_shares import Deal, Group, GroupMember, in_proportion
from mpsd.model.lease import FULL_PERCENT

INTERACTIVE, BATCH = 0, 1
LEVELS: Mapping[str, int] = {"interactive": INTERACTIVE, "batch": BATCH}
_SAME_PERCENT = 1e-6


class Elastic(Struct, frozen=True):
    """The settings of the policy.

    cost_seconds: for how long a client that is moved does no work, where it was not measured for the member. least_move: a
    deal in which no share changes by so many percent of the GPU is not worth a start of processes. horizon_seconds: for how
    long a deal is expected to hold. busy, idle: above and below these fractions of its share a lease counts as busy or at
    rest; allotment_seconds, rest_seconds: for how long until it sinks or rises. boost_seconds: after this time all return to
    their first level. air: the margin of an interactive lease above its use. floor: the least part of its share that a lease
    keeps. worth: what a percent of interactive work counts, relative to a percent of batch work. surplus: the same for a
    percent of batch work beyond its own part: below 1, what one that sank has in excess returns to the others.
    """

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
    least_move: float = 0.0
    surplus: float = 1.0


class Weighed(Struct, frozen=True):
    """A deal with the reason for it."""

    deal: Deal
    is_new: bool
    why: str


class FeedbackPlace(Struct, frozen=True):
    """The place of a lease in the feedback queue.

    spent, rested: seconds in a row at this level in which it was busy, or idle.  since: the time of the last boost.
    """

    home: int
    level: int
    since: float
    spent: float = 0.0
    rested: float = 0.0


def begin(level: str, now: float) -> FeedbackPlace:
    return FeedbackPlace(LEVELS[level], LEVELS[level], now)


def feed(standing: FeedbackPlace, busy: float, seconds: float, now: float, settings: Elastic) -> FeedbackPlace:
    """Return the new place after `seconds` in which the lease's clients used this fraction of their shares."""
    if now - standing.since >= settings.boost_seconds:
        return FeedbackPlace(standing.home, standing.home, now)
    spent = standing.spent + seconds if busy >= settings.busy else 0.0
    rested = standing.rested + seconds if busy <= settings.idle else 0.0
    if standing.level == INTERACTIVE and spent >= settings.allotment_seconds:
        return FeedbackPlace(standing.home, BATCH, standing.since)
    if standing.level == BATCH and rested >= settings.rest_seconds:
        return FeedbackPlace(standing.home, INTERACTIVE, standing.since)
    return replace(standing, spent=spent, rested=rested)


def deal(group: Group, settings: Elastic) -> Deal:
    """Return the deal to apply: a new one if it is worth its cost, else the one in force."""
    return weigh(group, settings).deal


def weigh(group: Group, settings: Elastic) -> Weighed:
    """Return the deal to apply, and why it is a new one or the one in force."""
    wanted = aim(group, settings)
    gained, lost = gain(group, wanted, settings), cost(group, wanted, settings)
    largest = max((abs(wanted[each.lease_id] - each.in_force) for each in group.members), default=0.0)
    facts = f"a gain of {gained:.0f} percent-seconds in {settings.horizon_seconds:g} s, a cost of {lost:.1f}"
    if largest < max(settings.least_move, _SAME_PERCENT):
        why = f"no share would change by {settings.least_move:g} % or more"
    elif gained <= lost:
        why = f"a move does not pay: {facts}"
    else:
        return Weighed(wanted, True, facts)
    return Weighed({member.lease_id: member.in_force for member in group.members}, False, why)


def aim(group: Group, settings: Elastic) -> dict[int, float]:
    """Return the best deal if moving cost nothing."""
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
    """Return the additional work that the new deal allows, in percent-seconds, weighted by its worth."""
    return (_served(group, wanted, settings) - _served(group, _in_force(group), settings)) * settings.horizon_seconds


def cost(group: Group, wanted: Deal, settings: Elastic) -> float:
    """Return the work that the moves stop, in percent-seconds: of the running clients whose share would change."""
    moved = (member for member in group.members if abs(wanted[member.lease_id] - member.in_force) > _SAME_PERCENT)
    return sum(sum(each.held) * (settings.cost_seconds if each.move_seconds is None else each.move_seconds) for each in moved)


def _in_force(group: Group) -> Deal:
    """Return the present deal, cut to the total: a lease may be back after its share was dealt to others."""
    out = sum(member.in_force * member.present for member in group.members)
    cut = min(1.0, group.total / out) if out else 1.0
    return {member.lease_id: member.in_force * cut for member in group.members}


def _want(member: GroupMember, settings: Elastic) -> float:
    """Return the need of one part: its use, with a margin; its own part if its use was not measured.

    The need of one that keeps its share busy is larger than its use: its own part, or its share where that is more, counts.
    """
    if member.busy is None:
        return member.part
    held = sum(member.held) / len(member.held) if member.held else member.in_force
    used = max(held, member.part) if member.busy >= settings.busy else member.busy * held
    return min(max(used * settings.air, member.part * settings.floor), FULL_PERCENT)


def _served(group: Group, shares: Deal, settings: Elastic) -> float:
    """Return how much of the need the shares cover, weighted; batch needs everything, and most of all its own part."""
    served = 0.0
    for member in group.members:
        is_interactive = member.level == INTERACTIVE
        want, worth = (_want(member, settings), settings.worth) if is_interactive else (FULL_PERCENT, 1.0)
        share = min(want, shares[member.lease_id])
        own = share if is_interactive else min(share, member.part)
        served += (own + (share - own) * settings.surplus) * member.present * worth
    return served
