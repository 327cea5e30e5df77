"""Give leases room and admit clients in the order of the queue, and keep those that have to wait.

Every change of the free amounts ends in `advance`, which admits all that can go in and gives the others their reason to wait.
"""

import functools
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace

from mpsd.errors import NoRoom, Refused, UnusablePath
from mpsd.leases.active_leases import ActiveLeases
from mpsd.leases.admitted_clients import AdmittedClients
from mpsd.leases.event_log import LeaseEvents
from mpsd.leases.quota_limits import QuotaLimits
from mpsd.leases.rules import queue
from mpsd.leases.rules.admission import hindrance_of, may_be_told, refusal_of
from mpsd.leases.rules.budgets import ScopeLimits, client_amounts, first_blocked, lease_amounts, shortage
from mpsd.leases.rules.initial_share import Dealer
from mpsd.leases.rules.matching import is_among, place_of, places_of
from mpsd.leases.rules.queue import QueueEntry, QueuePlan, Waiting
from mpsd.leases.rules.usage import Account
from mpsd.leases.wait_queue import NO_PLACE, Client, WaitQueue, WaitQueueEntry
from mpsd.model.lease import Grant, Identity, Lease, Refusal
from mpsd.model.process import Credentials, ProcessId

log = structlog.get_logger()
_NEWCOMER = "newcomer"
_NO_FILES = "mpsd has open files for {} clients, and as many run: raise LimitNOFILE="
_KEPT_FILES = "mpsd has open files for {} clients: raise LimitNOFILE=; {}"
_DEALT_OUT = "other members hold all shares of its group"

Identify = Callable[[ProcessId | None, Credentials], Identity]


class Admissions:
    """Guards the queue's order: no entry gets room before one that is ahead of it and waits for the same."""

    def __init__(
        self,
        quotas: QuotaLimits,
        account: Account,
        register: ActiveLeases,
        clients: AdmittedClients,
        dealer: Dealer,
        news: LeaseEvents,
    ) -> None:
        self.line = WaitQueue(quotas.share_of)
        self._quotas = quotas
        self._account = account
        self._register = register
        self._clients = clients
        self._dealer = dealer
        self._news = news
        self._arrivals = 0
        self._is_stale = False  # waiting entries changed, apart from the free amounts
        self._newcomers: dict[WaitQueueEntry, None] = {}  # clients that got a place since the last `advance`: not reported yet

    # -- leases ------------------------------------------------------------------------------------------------------

    def why_not_now(self, draft: Lease) -> str:
        """Return why a new lease has to wait, in words; empty if it has room.  Raise NoRoom if it could never have any."""
        waiting = self._lease_waiting(_NEWCOMER, draft)
        limits, used = self._quotas.limits(self._account.places), self._account.ledger.used
        if never := first_blocked(waiting.amounts, limits.of, {}, {}):
            raise NoRoom(f"more than there is: {shortage(never, waiting.amounts, limits, {})}")
        if self.line.demand.leaves_room_for(waiting.amounts, limits, used):
            return ""
        others = (entry.waiting for entry in self._ready())
        reason = queue.plan([*others, waiting], limits, used, self._quotas.order()).reasons.get(_NEWCOMER, "")
        return queue.in_words(reason, waiting, limits, used)

    def line_up(self, lease: Lease, why: str = "") -> None:
        """Add a QUEUED lease to the queue."""
        entry = WaitQueueEntry(self._lease_waiting(lease.id, lease), lease.owner_uid, lease.id, reason=why)
        self.line.join(entry, self._quotas.settings)

    def lease_came(self, lease: Lease) -> None:
        """Match the waiting clients again: some may now use this lease.  One without a place is matched when it gets one."""
        place = place_of(lease)
        for entry in self.line:
            if entry.client is not None and is_among(place, entry.client.places):
                self._match_again(entry, entry.client)
                self._is_stale = True

    def leases_went(self, leases: Sequence[Lease]) -> None:
        """Take the leases out of the queue, and match their waiting clients again: another lease, or none, is theirs now."""
        for lease in leases:
            if (waiting := self.line.find(lease.id)) is not None:
                self._leave(waiting)
                self._is_stale = True  # others may have the amounts that were set aside for it
        gone = {lease.id for lease in leases}
        for entry in self.line:
            if entry.client is not None and entry.lease_id in gone:
                self._match_again(entry, entry.client)
                self._is_stale = True

    # -- clients -----------------------------------------------------------------------------------------------------

    def ask(self, process: ProcessId, credentials: Credentials, identify: Identify) -> Grant | WaitQueueEntry:
        """Admit the process, or let it wait; then the caller has to `catch_up`.  Raise Refused, and what `identify` raises."""
        settings = self._quotas.settings
        identity = identify(process, credentials) if len(self._register) else None
        lease = self._register.match(identity) if identity else None
        if (why := refusal_of(lease, settings)) and may_be_told(settings):
            raise self._refused(process, credentials, why)
        owner = self._quotas.owner_of(credentials.uid)
        amounts = client_amounts(owner, lease)
        limits, used = self._quotas.limits(self._account.places), self._account.ledger.used
        kept = self._clients.hindrance_of(credentials.uid)
        if not kept and not self._hindrance(lease) and self.line.demand.leaves_room_for(amounts, limits, used):
            answer = self._clients.let_in(process, credentials, identity, lease, self._starting(lease))
            if isinstance(answer, Grant):
                return answer
        if settings.is_short_of_files and len(self._clients.grants) >= settings.max_clients:
            raise self._refused(process, credentials, _NO_FILES.format(settings.max_clients), Refusal.ERROR)
        if settings.is_short_of_files and kept:
            raise self._refused(process, credentials, _KEPT_FILES.format(settings.max_clients, kept), Refusal.ERROR)
        identity = identity or identify(process, credentials)
        client = Client(identity, credentials, places_of(identity))
        return self._have_wait(process, client, lease)

    async def wait(self, entry: WaitQueueEntry, told: Callable[[str], None]) -> Grant:
        """Wait until it is admitted.  Raise Refused.  If the caller is cancelled, it has to `catch_up`."""
        said = ""
        entry.callers += 1
        try:
            while entry.outcome is None:
                if entry.reason != said:
                    said = entry.reason
                    told(said)
                await entry.changed.wait()  # for ever, if the settings set no limit: it takes only its own place
        finally:
            entry.callers -= 1
            if entry.outcome is None and not entry.callers:
                self._give_up(entry)
        if isinstance(entry.outcome, Refused):
            raise Refused(entry.outcome.way, str(entry.outcome))
        return entry.outcome

    # -- the queue ---------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Admit all that can go in because of changes since the last call, if any waiting entry needs what changed."""
        if self.is_behind():
            self.advance()

    def is_behind(self) -> bool:
        """Return whether any waiting entry needs what changed since the last call; then the caller has to `advance`."""
        freed, has_group_grown = self._account.take_freed()
        may_detach = bool(freed and self._clients.retained)
        return self._is_stale or has_group_grown or may_detach or not freed.isdisjoint(self.line.demand.total)

    def advance(self) -> None:
        """Admit all that can go in.

        A lease that gets room may admit its own clients, and a free place goes to a client that waited without one.
        """
        self._account.take_freed()
        self._admit_all()
        for entry in self._newcomers:
            if entry.outcome is None:
                self._report(entry)
        self._newcomers.clear()

    def _admit_all(self) -> None:
        while len(self.line):
            self._is_stale = False
            limits = self._quotas.limits(self._account.places)
            self._detach_retained(limits)
            waiting = [entry.waiting for entry in self._ready()]
            decided = queue.plan(waiting, limits, self._account.ledger.used, self._quotas.order())
            self._tell(decided, limits)
            leases_got_room = [self._go(key) for key in decided.admitted]
            if not any(leases_got_room) and not self._is_stale:
                return
        self._is_stale = False

    def refuse_overdue(self, now: float) -> list[Lease]:
        """Refuse the clients that have waited as long as they may; return the leases that have."""
        leases: list[Lease] = []
        for entry in self.line.everybody():
            if entry.waiting.deadline is None or entry.waiting.deadline > now:
                continue
            if entry.client is None:
                leases += filter(None, [self._register.get(entry.lease_id)])
            else:
                waited = now - entry.waiting.arrived_at
                self._tell_no(entry, entry.client, f"it has waited for {waited:.0f} s, as long as it may: {entry.reason}")
        return leases

    def queue(self) -> Sequence[QueueEntry]:
        order, entries = self._quotas.order(), {entry.waiting.key: entry for entry in self._ready()}
        limits, used = self._quotas.limits(self._account.places), self._account.ledger.used
        ranked = queue.in_order((entry.waiting for entry in entries.values()), order)
        reasons = queue.plan(ranked, limits, used, order).reasons
        for one in ranked:
            if one.key in reasons:  # else it would fit, and its reason is the disk
                entries[one.key].reason = queue.in_words(reasons[one.key], one, limits, used)
        return [_show(number, entries[one.key], order.now) for number, one in enumerate(ranked, 1)]

    def next_change(self) -> tuple[float | None, float | None]:
        """Return the time of the first deadline, and of the first rise in rank."""
        order = self._quotas.order()
        deadlines = [entry.waiting.deadline for entry in self.line.everybody() if entry.waiting.deadline is not None]
        rises = [order.next_rise(entry.waiting) for entry in self.line]
        return min(deadlines, default=None), min(rises, default=None)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _detach_retained(self, limits: ScopeLimits) -> None:
        """Free places of leases with waiting clients, as far as the budgets have room for what their ended clients retain."""
        waiting = self.line.clients_by_lease()
        for process, lease_id in self._clients.retained.items():
            if waiting[lease_id] and self._account.detach(process, limits, self.line.demand):
                waiting[lease_id] -= 1

    def _tell(self, decided: QueuePlan, limits: ScopeLimits) -> None:
        used = self._account.ledger.used
        for key, reason in decided.reasons.items():
            if (entry := self.line.find(key)) is not None:
                lacking = reason if isinstance(reason, str) else reason.scope
                entry.tell(lacking, functools.partial(queue.in_words, reason, entry.waiting, limits, used))

    def _ready(self) -> list[WaitQueueEntry]:
        """Return the entries with a place, each with its present hindrance."""
        entries = list(self.line)
        for entry in entries:
            if entry.client is not None:
                kept = self._clients.hindrance_of(entry.uid)
                self.line.hinder(entry, kept or self._hindrance(self._register.get(entry.lease_id)))
        return entries

    def _hindrance(self, lease: Lease | None) -> str:
        if why := hindrance_of(lease, self._quotas.settings):
            return why
        return _DEALT_OUT if lease is not None and self._dealer.is_dealt_out(lease) else ""

    def _go(self, key: object) -> bool:
        """Admit one entry; return True if a lease got room, so that more may be possible."""
        entry = self.line.find(key)
        if entry is None:
            return False
        if entry.client is None:
            return self._activate(entry)
        if kept := self._clients.hindrance_of(entry.uid):  # those who went in before it took the rest
            entry.tell(kept, lambda: kept)
            self._is_stale = True  # what the plan gave it is others'
            return False
        identity, lease = entry.client.identity, self._register.get(entry.lease_id)
        assert identity.process is not None, "one that is not seen does not wait here"
        answer = self._clients.let_in(identity.process, entry.client.credentials, identity, lease, self._starting(lease))
        if isinstance(answer, str):
            entry.tell(answer, lambda: answer)
        else:
            self._leave(entry)
            entry.end(answer)
        return False

    def _activate(self, entry: WaitQueueEntry) -> bool:
        lease = self._register.get(entry.lease_id)
        assert lease is not None, "a lease that has ended waits no longer"
        try:
            lease = self._register.activate(lease, self._quotas.clock())
        except UnusablePath as exc:
            why = str(exc)
            if entry.blocked != why:
                log.error("store.failed", statement="a lease's activation", why=why)
            entry.tell(why, lambda: why)
            return False
        self._leave(entry)
        self._news.of_lease("activated", lease)
        return True

    def _have_wait(self, process: ProcessId, client: Client, lease: Lease | None) -> WaitQueueEntry:
        settings = self._quotas.settings
        uid = client.credentials.uid
        if may_be_told(settings) and not self.line.has_place_for(uid, settings):
            raise self._refused(process, client.credentials, NO_PLACE)
        entry = WaitQueueEntry(self._client_waiting(process, client, lease), uid, lease.id if lease else None, client)
        if self.line.join(entry, settings):
            self._newcomers[entry] = None
            self._is_stale = True
        else:  # without a place it is not considered
            self._report(entry)
        return entry

    def _report(self, entry: WaitQueueEntry) -> None:
        if entry.client is not None and entry.client.identity.process is not None:
            self._news.queued(entry.client.identity.process, entry.client.credentials, entry.lease_id, entry.reason)

    def _give_up(self, entry: WaitQueueEntry) -> None:
        self._leave(entry)
        self._is_stale = True  # others may have the amounts that were set aside for it
        if entry in self._newcomers:
            del self._newcomers[entry]
        elif entry.client is not None and entry.client.identity.process is not None:
            self._news.left(entry.client.identity.process, entry.client.credentials, entry.lease_id)

    def _leave(self, entry: WaitQueueEntry) -> None:
        if (placed := self.line.leave(entry, self._quotas.settings)) is not None:
            self._is_stale = True
            if placed.client is not None:
                self._use(placed, placed.client, self._register.match(placed.client.identity))

    def _match_again(self, entry: WaitQueueEntry, client: Client) -> None:
        lease = self._register.match(client.identity)
        if (why := refusal_of(lease, self._quotas.settings)) and may_be_told(self._quotas.settings):
            self._tell_no(entry, client, why)
        else:
            self._use(entry, client, lease)

    def _use(self, entry: WaitQueueEntry, client: Client, lease: Lease | None) -> None:
        """Let the client wait for this lease from now on."""
        if (lease.id if lease else None) != entry.lease_id:
            amounts = client_amounts(self._quotas.owner_of(client.credentials.uid), lease)
            waiting = replace(entry.waiting, amounts=amounts, priority=lease.spec.priority if lease else 0)
            self.line.alter(entry, waiting, lease.id if lease else None)

    def _tell_no(self, entry: WaitQueueEntry, client: Client, why: str) -> None:
        assert client.identity.process is not None
        self._leave(entry)
        entry.end(self._refused(client.identity.process, client.credentials, why))

    def _refused(self, process: ProcessId, credentials: Credentials, why: str, way: Refusal | None = None) -> Refused:
        refused = Refused(way or self._quotas.settings.refuse_with, why)
        self._news.refused(process, credentials, refused)
        return refused

    def _starting(self, lease: Lease | None) -> dict[int, int]:
        """Return how many clients of each lease are about to start, including one of this lease."""
        if lease is None or not lease.spec.group:
            return {}
        waiting = self.line.clients_by_lease()
        return waiting | {lease.id: max(1, waiting[lease.id])}

    def _lease_waiting(self, key: object, lease: Lease) -> Waiting:
        amounts = lease_amounts(lease, self._quotas.gpus_of(lease.spec), self._quotas.owner_of_lease(lease))
        wait_seconds = lease.spec.wait_seconds
        deadline = lease.created_at + wait_seconds if wait_seconds else None  # without a wait time it is not urgent
        return Waiting(key, self._next_number(), lease.spec.priority, lease.created_at, deadline, amounts)

    def _client_waiting(self, process: ProcessId, client: Client, lease: Lease | None) -> Waiting:
        settings, now = self._quotas.settings, self._quotas.clock()
        deadline = None
        if may_be_told(settings) and settings.wait_seconds is not None:
            deadline = now + settings.wait_seconds
        amounts = client_amounts(self._quotas.owner_of(client.credentials.uid), lease)
        return Waiting(process, self._next_number(), lease.spec.priority if lease else 0, now, deadline, amounts)

    def _next_number(self) -> int:
        self._arrivals += 1
        return self._arrivals


def _show(position: int, entry: WaitQueueEntry, now: float) -> QueueEntry:
    process = entry.client.identity.process if entry.client else None
    waited = max(0.0, now - entry.waiting.arrived_at)
    return QueueEntry(position, entry.uid, entry.lease_id, process, entry.reason, waited, entry.waiting.deadline)
