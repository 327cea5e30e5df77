"""Deal the SM shares of a group to its members as they start.

A running client keeps its share for life, so a share moves only at a start.  One rule holds for every policy: the clients of a
group together never have more than its leases have reserved.

A *part* is what one process of a lease would get without dealing: the lease's share divided by its processes.  A policy decides
how large the parts of each lease should be; `at_start` gives a starting client as much of that as is free.  Policies:
`deal_as_reserved` and `deal_by_presence` here, and the elastic one (elastic_shares.py).  Prose: docs/leases.md, "Groups".
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from mpsd.model.lease import FULL_PERCENT

LEAST_PERCENT = 1.0  # a client that would get less waits, unless its own part is smaller


class GroupMember(Struct, frozen=True):
    """One lease of a group.

    part: percent, as reserved; dealt: percent of a part by the last deal. held: the shares of its running clients. starting:
    the number of clients about to run. recent: the number of parts that lost their process so recently that they are kept for
    it. level, busy and move_seconds are for the elastic policy; busy is the fraction of their share that its clients used
    lately, None if it was not measured; move_seconds, for how long its last move stopped its work, None if it has not moved
    yet.
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
    move_seconds: float | None = None

    @property
    def present(self) -> int:
        """Return the number of its parts that a process uses or may come back to."""
        return min(self.parts, len(self.held) + max(self.starting, self.recent))

    @property
    def in_force(self) -> float:
        return self.part if self.dealt is None else self.dealt


class Group(Struct, frozen=True):
    """total: percent that the leases have reserved. taken: percent that is not available: clients whose lease has ended hold
    it, and had more than that lease's part."""

    total: float
    members: Sequence[GroupMember]
    taken: float = 0.0

    @property
    def free(self) -> float:
        return self.total - self.taken - sum(sum(member.held) for member in self.members)


Deal = Mapping[int, float]  # percent of a part, by lease
Policy = Callable[[Group], Deal]


def deal_as_reserved(group: Group) -> Deal:
    """Move nothing; but shares that were dealt to others before stay theirs as long as they run."""
    return {member.lease_id: member.part for member in group.members}


def deal_by_presence(group: Group) -> Deal:
    """Give the parts of absent members to the present ones, in proportion to what these have reserved."""
    return in_proportion(group.total, group.members, {member.lease_id: member.part for member in group.members})


def in_proportion(total: float, members: Sequence[GroupMember], weights: Deal) -> dict[int, float]:
    """Return parts by weight, for as many as are present; together they are `total`, or each is a whole GPU.

    A part that a member cannot take because it would exceed a GPU goes to the others. Absent members keep their own part on
    paper.
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
    """Return the share of a client of this lease that starts now; None if too little is free, so that it has to wait."""
    member = next(member for member in group.members if member.lease_id == lease_id)
    share = min(deal[lease_id], group.free, FULL_PERCENT)
    return share if share >= min(LEAST_PERCENT, member.part) else None
