"""The inputs of the daemon's construction: its configuration, and what the start found on the machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.api.audit import Audit
from mpsd.config import Invocation
from mpsd.failover.store import ServiceStore
from mpsd.faults.store import FaultStore
from mpsd.inspector import Inspector
from mpsd.leases.store import LeaseStore
from mpsd.model import Device
from mpsd.options import Config
from mpsd.policy.descriptor_budget import Budget
from mpsd.policy.uid_ranges import UidRanges
from mpsd.runtime.claim import Claim
from mpsd.runtime.public_log import PublicLog
from mpsd.runtime.store import SqliteStore
from mpsd.user_database import AdminGroup
from mpsd.vault.store import VaultStore


@dataclass(frozen=True, slots=True)
class Found:
    """The values and open stores from which app.py builds the daemon."""

    config: Config
    invocation: Invocation
    environ: Mapping[str, str]
    claim: Claim
    public: PublicLog
    devices: tuple[Device, ...]
    is_privileged: bool
    store: SqliteStore
    lease_store: LeaseStore
    fault_store: FaultStore
    vault_store: VaultStore
    service_store: ServiceStore
    audit: Audit
    inspector: Inspector
    budget: Budget
    ranges: UidRanges
    admin_group: AdminGroup
