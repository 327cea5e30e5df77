"""Keep the admitted clients and their grants; a grant of a lease is on disk before its client gets it.

A grant without a lease is not stored: a running client that mpsd does not know had none.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
from msgspec import Struct

from mpsd.errors import UnusablePath
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.host.inspector_answers import Unreadable
from mpsd.leases.event_log import LeaseEvents
from mpsd.leases.quota_limits import QuotaLimits
from mpsd.leases.rows import Admitted
from mpsd.leases.rules.admission import DEFAULT, grant_of_lease, part_of
from mpsd.leases.rules.initial_share import Dealer
from mpsd.leases.rules.usage import Account, ClientUsage
from mpsd.leases.store import LeaseStore
from mpsd.model.lease import Grant, Identity, Lease
from mpsd.model.process import Credentials, ProcessId

log = structlog.get_logger()
_DEALT_OUT = "lease {}: all shares of its group are taken; one is free when a member ends"


class _Known(Struct):
    credentials: Credentials
    identity: Identity | None


class AdmittedClients:
    """Guards that a process has one grant, for its whole life, and that it is counted once."""

    def __init__(self, store: LeaseStore, account: Account, dealer: Dealer, news: LeaseEvents, quotas: QuotaLimits) -> None:
        self.grants: dict[ProcessId, Grant] = {}
        self.retained: dict[ProcessId, int] = {}  # ended clients that still have memory, with the ids of their leases
        self._store = store
        self._account = account
        self._dealer = dealer
        self._news = news
        self._quotas = quotas
        self._known: dict[ProcessId, _Known] = {}
        self._slots: Counter[int] = Counter()  # by the uid of their share

    def restore(
        self,
        find_lease: Callable[[int], Lease | None],
        is_alive: Callable[[ProcessId], bool],
        is_retained: Callable[[ProcessId], bool],
    ) -> None:
        """Restore the clients of an earlier mpsd that still run; what they hold counts even if their lease has ended since."""
        admitted = self._store.admitted()
        living = {one.process for one in admitted if is_alive(one.process)}
        for one in sorted(admitted, key=lambda one: one.process not in living):  # the living have their places first
            lives = one.process in living
            if not lives and not (one.grant.memory_bytes and is_retained(one.process)):
                self._forget_on_disk(one.process)
                continue
            owner = self._quotas.owner_of(one.credentials.uid)
            self._account.start(one.process, owner, find_lease(one.held.lease_id), one.held)
            if lives:
                self._enter(one.process, one.credentials, None, one.grant)
            else:
                self._retain(one.process, one.held.lease_id)

    def let_in(
        self,
        process: ProcessId,
        credentials: Credentials,
        identity: Identity | None,
        lease: Lease | None,
        starting: Mapping[int, int],
    ) -> Grant | str:
        """Return the grant, or in words why not yet.  starting: clients of each lease that are about to start."""
        held = None
        grant = DEFAULT
        if lease is not None:
            share = self._dealer.share(lease, starting, self._quotas.clock())
            if share is None:
                return _DEALT_OUT.format(lease.id)
            grant, held = self._of_lease(lease, share)
            try:
                self._store.admit(Admitted(process, credentials, grant, held))
            except UnusablePath as exc:
                log.error("store.failed", statement="a client's grant", why=str(exc))
                return str(exc)
        self._account.start(process, self._quotas.owner_of(credentials.uid), lease, held)
        self._enter(process, credentials, identity, grant)
        self._news.admitted(process, credentials, grant)
        return grant

    def take_in(self, process: ProcessId, credentials: Credentials) -> Grant:
        """Enter a client that runs already, without a lease."""
        self._account.start(process, self._quotas.owner_of(credentials.uid), None, None)
        self._enter(process, credentials, None, DEFAULT)
        return DEFAULT

    def remove(self, process: ProcessId, *, is_stored: bool, is_retained: bool = False) -> bool:
        """Remove a process; return True if it was a client, or its memory was retained and is free now.

        is_stored: remove its grant from the disk too.  is_retained: if its lease limits its memory, this counts until a later
        call.
        """
        known, grant = self._known.pop(process, None), self.grants.pop(process, None)
        if known is None or grant is None:
            return not is_retained and self._free(process)
        self._count(known.credentials.uid, -1)
        if is_retained and grant.lease_id is not None and grant.memory_bytes:
            self._retain(process, grant.lease_id)
        else:
            if grant.lease_id is not None and is_stored:
                self._forget_on_disk(process)
            self._account.end(process, self._quotas.clock())
        self._news.left(process, known.credentials, grant.lease_id)
        return True

    def _retain(self, process: ProcessId, lease_id: int) -> None:
        self.retained[process] = lease_id
        self._account.retain(process, self._quotas.clock())

    def _free(self, process: ProcessId) -> bool:
        if self.retained.pop(process, None) is None:
            return False
        self._forget_on_disk(process)
        self._account.end(process, self._quotas.clock())
        return True

    def hindrance_of(self, uid: int) -> str:
        """Return why a further client of this user gets no slot though slots are free, in words; empty if it gets one."""
        settings, own = self._quotas.settings, self._slots[self._quotas.share_of(uid)]
        return hindrance_of_slots(settings.max_clients, own, len(self.grants), uid in settings.operators)

    def uid_of(self, process: ProcessId) -> int | None:
        known = self._known.get(process)
        return known.credentials.uid if known else None

    def identity_of(self, process: ProcessId, identify: Callable[[ProcessId, Credentials], Identity]) -> Identity | None:
        """Return the client's identity; it is read now if admission did not need it.  None: it is not known."""
        known = self._known.get(process)
        if known is not None and known.identity is None:
            with suppress(Unreadable):
                known.identity = identify(process, known.credentials)
        return known.identity if known else None

    def _enter(self, process: ProcessId, credentials: Credentials, identity: Identity | None, grant: Grant) -> None:
        self.grants[process] = grant
        self._known[process] = _Known(credentials, identity)
        self._count(credentials.uid, 1)

    def _count(self, uid: int, change: int) -> None:
        share = self._quotas.share_of(uid)
        self._slots[share] += change
        if not self._slots[share]:
            del self._slots[share]

    def _of_lease(self, lease: Lease, share: int) -> tuple[Grant, ClientUsage]:
        gpus = self._quotas.gpus_of(lease.spec)
        grant = grant_of_lease(lease, gpus, share, self._quotas.devices())
        key, pool = self._account.pool_of(lease.id)
        counted = share if lease.spec.sm_percent else 0  # a lease without a share takes none from others
        return grant, ClientUsage(lease.id, key, pool.gpus, pool.owner, counted, part_of(lease), grant.memory_bytes)

    def _forget_on_disk(self, process: ProcessId) -> None:
        """Remove the grant from the disk.  If that fails, the next mpsd finds that the process has ended."""
        try:
            self._store.remove([], process)
        except UnusablePath as exc:
            log.error("store.failed", statement="the end of a client", why=str(exc))
