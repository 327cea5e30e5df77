"""The settings of admission: the configuration's [admission], as the policies use it.

Prose: docs/leases.md, "Settings".
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from mpsd.model.lease import Refusal

ROOT_UID = 0


class Quota(Struct, frozen=True):
    """The most that a user or group may have; None: no limit.  sm_percent and memory_bytes are those of each GPU."""

    sm_percent: float | None = None
    memory_bytes: int | None = None
    clients: int | None = None
    leases: int | None = None


class AdmissionSettings(Struct, frozen=True):
    """default: what happens to a client without a lease.  refuse_with: how a client is refused.

    wait_seconds: how long a client may wait before it is refused; None, or if it is refused by waiting: for ever.
    backfill_seconds: for so long a waiting entry may be passed.
    user_*: the quota of each user except operators; group_quotas: in its place for members of a Unix group, the first that
    fits; group_totals: of all members of a Unix group together.  operators: uids without quotas, whose leases serve all
    users.  redistribute: whether shares of a group are dealt anew as its members start; inherit_seconds: after so long without
    its process, a share is dealt to the others; move_cost_seconds: of the elastic policy (elastic_shares.py).
    """

    default: Literal["share", "refuse"] = "share"
    refuse_with: Refusal = Refusal.WAIT
    wait_seconds: float | None = None
    sm_oversubscription: float = 1.0
    memory_oversubscription: float = 1.0
    max_leases: int = 10_000
    max_clients: int = 4096
    is_short_of_files: bool = False  # mpsd's descriptors limit max_clients: waiting clients take those that others need
    max_queue: int = 1024
    user_queue: int = 128
    backfill_seconds: float = 30.0
    user_sm_percent: float | None = None
    user_memory_bytes: int | None = None
    user_clients: int | None = None
    user_leases: int | None = 256
    group_quotas: Mapping[str, Quota] = field(default_factory=dict)
    group_totals: Mapping[str, Quota] = field(default_factory=dict)
    operators: frozenset[int] = frozenset({ROOT_UID})
    redistribute: Literal["off", "group", "elastic"] = "off"
    inherit_seconds: float = 30.0
    move_cost_seconds: float = 5.0

    @property
    def user_quota(self) -> Quota:
        return Quota(self.user_sm_percent, self.user_memory_bytes, self.user_clients, self.user_leases)

    @property
    def quota_groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.group_quotas, *self.group_totals]))

    def quota_of(self, groups: tuple[str, ...]) -> Quota:
        return next((quota for name, quota in self.group_quotas.items() if name in groups), self.user_quota)
