"""How the SM shares of a group are dealt to its members as they start.

What a running client has is its own for life, so a share moves only at a start.  The rule that holds whatever the policy
says: what the clients of a group hold together is never more than what its leases have reserved.

A *part* is what one process of a lease would get if nothing were dealt: the lease's share divided by its processes.  A policy
says how large the parts of each lease should be; `at_start` gives a starting client as much of that as is free.  Policies:
`deal_as_reserved` and `deal_by_presence` here, and the elastic one (elastic.py).  Prose: docs/leases.md, "Groups".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mpsd.lease import FULL_PERCENT

LEAST_PERCENT = 1.0  # a client that would get less waits, unless its own part is smaller


@dataclass(frozen=True, slots=True)
class Member:
    """One lease of a group.

    part: percent, as reserved; dealt: percent of a part by the last deal.  held: of its running clients.  starting: how many
    are about to.  recent: how many parts are without a process so shortly that they are kept for one.  level and busy are for
    the elastic policy; busy is the fraction of their share that its clients used of late, None where nobody measured it.
    """

    lease_id: int
    part: float
    parts: int = 1
    dealt: float | None = None
    held: tuple[float, ...] = ()
    starting: int = 0
    recent: int = 0
    level: int = 0
    busy: float | None = None

    @property
    def present(self) -> int:
        """How many of its parts somebody uses or comes back to."""
        return min(self.parts, len(self.held) + max(self.starting, self.recent))

    @property
    def in_force(self) -> float:
        return self.part if self.dealt is None else self.dealt


@dataclass(frozen=True, slots=True)
class Group:
    """total: percent that the leases have reserved.  taken: percent that is out of reach, held by clients whose lease has
    ended and who had more than that lease's part."""

    total: float
    members: Sequence[Member]
    taken: float = 0.0

    @property
    def free(self) -> float:
        return self.total - self.taken - sum(sum(member.held) for member in self.members)


Deal = Mapping[int, float]  # percent of a part, by lease
Policy = Callable[[Group], Deal]


def deal_as_reserved(group: Group) -> Deal:
    """Nothing moves; but what was dealt to others before is theirs as long as they run."""
    return {member.lease_id: member.part for member in group.members}


def deal_by_presence(group: Group) -> Deal:
    """The parts of those who are not there go to those who are, in proportion to what these have reserved."""
    return in_proportion(group.total, group.members, {member.lease_id: member.part for member in group.members})


def in_proportion(total: float, members: Sequence[Member], weights: Deal) -> dict[int, float]:
    """Parts by weight, for as many as are present, that add up to `total` or to the whole GPU each.

    What one cannot take because it would be more than a GPU goes to the others.  Absent members keep their own part on paper.
    """
    shares = {member.lease_id: member.part for member in members if not member.present}
    rest = [member for member in members if member.present]
    while rest:
        weight = sum(weights[member.lease_id] * member.present for member in rest)
        share = {member.lease_id: total * weights[member.lease_id] / weight if weight else 0.0 for member in rest}
        full = [member for member in rest if share[member.lease_id] > FULL_PERCENT]
        if not full:
            return shares | share
        for member in full:
            shares[member.lease_id] = FULL_PERCENT
            total -= FULL_PERCENT * member.present
        rest = [member for member in rest if member not in full]
    return shares


def at_start(group: Group, lease_id: int, deal: Deal) -> float | None:
    """What a client of this lease gets as it starts now; None when too little is free, and it has to wait."""
    member = next(member for member in group.members if member.lease_id == lease_id)
    share = min(deal[lease_id], group.free, FULL_PERCENT)
    return share if share >= min(LEAST_PERCENT, member.part) else None
