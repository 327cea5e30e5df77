"""Compute the share that a client starts with: its lease's part, or what its group's policy deals it.

Joins the policies (group_shares.py, elastic_shares.py) with what is reserved and held (usage.py).  Values only; time is given.
"""

from collections.abc import Callable, Mapping, Sequence

from mpsd.leases.rules import elastic_shares
from mpsd.leases.rules.admission import part_of
from mpsd.leases.rules.budgets import AmountKind, Scope, ScopeLevel, to_millionths, to_percent
from mpsd.leases.rules.elastic_shares import LEVELS, Elastic
from mpsd.leases.rules.group_shares import (
    LEAST_PERCENT,
    Deal,
    Group,
    GroupMember,
    Policy,
    at_start,
    deal_as_reserved,
    deal_by_presence,
)
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.rules.sm_pools import SmPool
from mpsd.leases.rules.usage import Account
from mpsd.model import sm_steps
from mpsd.model.device import Device
from mpsd.model.lease import FULL_PERCENT, Lease, LeaseSpec

_ROUNDING = 1  # a millionth of a percent


class Dealer:
    """Guards that no group is dealt more than it has."""

    def __init__(
        self,
        settings: Callable[[], AdmissionSettings],
        account: Account,
        find: Callable[[int], Lease],
        devices_of: Callable[[LeaseSpec], Sequence[Device]],
    ) -> None:
        self._settings = settings
        self._account = account
        self._find = find
        self._devices_of = devices_of

    def share(self, lease: Lease, starting: Mapping[int, int], now: float) -> int | None:
        """Return the share of a client of this active lease that starts now.

        In millionths of a percent; None: too little is free in its group.  starting: clients of each lease that are about to
        start, including this one.
        """
        if not lease.spec.sm_percent:
            return to_millionths(self._unreserved(lease))
        key, pool = self._account.pool_of(lease.id)
        part = part_of(lease)
        if not lease.spec.group or (self._settings().redistribute == "off" and pool.free() >= part):
            return part
        group = self._account.group_of(key, lambda each, held: self._describe(pool, each, held, starting, now))
        deal = self._deal(group)
        pool.dealt = dict(deal)
        share = at_start(group, lease.id, deal)
        return None if share is None else self._in_steps(lease, min(to_millionths(share), pool.free()))

    def is_dealt_out(self, lease: Lease) -> bool:
        """Return whether its group has no share left for one more client."""
        if not lease.spec.group or not lease.spec.sm_percent:
            return False
        _, pool = self._account.pool_of(lease.id)
        return pool.free() < min(to_millionths(LEAST_PERCENT), part_of(lease))

    def _unreserved(self, lease: Lease) -> float:
        """Return the share for a lease without one: the unreserved share of its GPUs, on the GPU where this is smallest."""
        devices, used = self._devices_of(lease.spec), self._account.ledger.used
        taken = (used.get(Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu=each.uuid), 0) for each in devices)
        return sm_steps.remainder(min(FULL_PERCENT, to_percent(max(taken, default=0))), devices)

    def _in_steps(self, lease: Lease, share: int) -> int | None:
        """Round a dealt share to the hardware's steps; None: it is less than a client can be given, and than its own part."""
        part = part_of(lease)
        if abs(share - part) <= _ROUNDING:
            return share
        rounded = to_millionths(sm_steps.whole(to_percent(share), self._devices_of(lease.spec)))
        return rounded or (part if share >= part else None)

    def _deal(self, group: Group) -> Deal:
        policies: dict[str, Policy] = {
            "off": deal_as_reserved,
            "group": deal_by_presence,
            "elastic": lambda group: elastic_shares.deal(group, self._elastic()),
        }
        return policies[self._settings().redistribute](group)

    def _elastic(self) -> Elastic:
        settings = self._settings()
        return Elastic(settings.move_cost_seconds)

    def _describe(
        self, pool: SmPool, lease_id: int, held: Sequence[int], starting: Mapping[int, int], now: float
    ) -> GroupMember:
        lease = self._find(lease_id)
        return GroupMember(
            lease_id,
            to_percent(part_of(lease)),
            lease.spec.processes,
            pool.dealt.get(lease_id),
            tuple(map(to_percent, held)),
            starting.get(lease_id, 0),
            pool.recent(lease_id, now - self._settings().inherit_seconds),
            LEVELS[lease.spec.level],
        )
