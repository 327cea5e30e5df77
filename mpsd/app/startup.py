"""The inputs of the daemon's construction: its configuration, and what the start found on the machine."""

from collections.abc import Mapping

from msgspec import Struct

from mpsd.api.audit import Audit
from mpsd.app.instance_lock import InstanceLock
from mpsd.config.loading import Invocation
from mpsd.config.options import Config
from mpsd.domains.public_log import PublicLog
from mpsd.domains.store import SqliteStore
from mpsd.fairness.uid_ranges import UidRanges
from mpsd.faults.store import FaultStore
from mpsd.host.inspector import Inspector
from mpsd.host.rules.descriptor_budget import Budget
from mpsd.host.user_database import AdminGroup
from mpsd.leases.store import LeaseStore
from mpsd.log.journal import Journal
from mpsd.model.device import Device
from mpsd.services.store import ServiceStore
from mpsd.vault.store import VaultStore


class Startup(Struct, frozen=True):
    """The values and open stores from which start.py builds the daemon."""

    config: Config
    invocation: Invocation
    environ: Mapping[str, str]
    claim: InstanceLock
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
    journal: Journal
