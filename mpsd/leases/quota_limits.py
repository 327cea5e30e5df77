"""Keep what applies to all leases and clients: the settings, the GPUs, and the groups of users.

Computes from them the limits for the policies.
"""

from collections.abc import Callable, Mapping, Sequence

from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.unix_groups import UnixGroups
from mpsd.leases.rules.budgets import Owner, ScopeLimits
from mpsd.leases.rules.queue import QueueOrder
from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.leases.store import LeaseStore
from mpsd.model.device import Device
from mpsd.model.lease import Lease, LeaseSpec


class QuotaLimits:
    """Guards that all limits come from the same settings; `settings` may be replaced while mpsd runs."""

    def __init__(
        self,
        settings: AdmissionSettings,
        devices: Callable[[], Sequence[Device]],
        groups: UnixGroups,
        clock: Callable[[], float],
        ranges: UidRanges = NO_RANGES,
    ) -> None:
        self.settings = settings
        self.devices = devices
        self.clock = clock
        self.share_of = ranges.share_of  # the uid that a uid counts as
        self._groups = groups

    def configure(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self._groups.forget()

    async def learn_groups(self, uid: int) -> bool:
        """Learn the groups of a user if a quota depends on them; return False if the user database does not answer."""
        return uid in self.settings.operators or await self._groups.learn(uid, self.settings.quota_groups)

    def learn_groups_now(self, store: LeaseStore) -> None:
        """Learn the groups of all users in the store.  Blocks: for the start."""
        owners = {lease.owner_uid for lease in store.leases()} | {one.credentials.uid for one in store.admitted()}
        self._groups.learn_now(owners - self.settings.operators, self.settings.quota_groups)

    def gpus_of(self, spec: LeaseSpec) -> tuple[str, ...]:
        return spec.gpus or tuple(device.uuid for device in self.devices())

    def devices_of(self, spec: LeaseSpec) -> list[Device]:
        return [device for device in self.devices() if not spec.gpus or device.uuid in spec.gpus]

    def owner_of(self, uid: int) -> Owner | None:
        """Return the owner whose quotas apply to a client of this user; None: an operator, without quotas.

        All uids of a range of /etc/subuid have the quotas of one user.
        """
        if uid in self.settings.operators:
            return None
        return Owner(self.share_of(uid), self._groups.of(uid, self.settings.quota_groups))

    def owner_of_lease(self, lease: Lease) -> Owner | None:
        return None if lease.for_all_users else self.owner_of(lease.owner_uid)

    def limits(self, places: Mapping[str, int]) -> ScopeLimits:
        return ScopeLimits(self.settings, self.devices(), places, self._quota_of)

    def order(self) -> QueueOrder:
        return QueueOrder(self.settings.backfill_seconds, self.clock())

    def _quota_of(self, uid: int) -> Quota:
        return self.settings.quota_of(self._groups.of(uid, self.settings.quota_groups))
