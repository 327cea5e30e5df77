"""LeaseBook: the one owner of leases and admissions while mpsd runs.

leases/rules/ makes the decisions; the store has all that must outlive mpsd before any caller gets an answer.  Except for waits,
each change happens at once: no other task can see it half done.  Prose: docs/leases.md.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import structlog
import trio
from msgspec.structs import replace

from mpsd.errors import NoRoom, Refused, TooMany, UnusablePath
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import processes
from mpsd.host.unix_groups import UnixGroups
from mpsd.leases.active_leases import ActiveLeases, end_of
from mpsd.leases.admissions import Admissions, Identify
from mpsd.leases.admitted_clients import AdmittedClients
from mpsd.leases.event_log import FactsOf, LeaseEvents, Publish, no_facts
from mpsd.leases.expiry_timer import ExpiryTimer
from mpsd.leases.quota_limits import QuotaLimits
from mpsd.leases.request_checks import check_draft, same_request, with_start_time
from mpsd.leases.rules.admission import UNSEEN, may_be_told, refusal_of
from mpsd.leases.rules.initial_share import Dealer
from mpsd.leases.rules.queue import AGING_SECONDS, QueueEntry
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.rules.spec import check_spec, check_ttl
from mpsd.leases.rules.usage import Account
from mpsd.leases.store import LeaseStore
from mpsd.log.once import Once
from mpsd.model.device import Device
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec, LeaseState
from mpsd.model.process import Credentials, ProcessId
from mpsd.model.sm_steps import as_given

log = structlog.get_logger()
_RANKS_SECONDS = 1.0  # ranks of a long queue rise all the time; an entry that goes in only because of that can wait so long
_LOOK_SECONDS = 20.0  # between checks of the processes that no other task watches; clients in a domain are watched there
_LOOKS_AT_ONCE = 64  # then other tasks run
_LOOKS_A_ROUND = 1000  # more processes are checked less often
_AGAIN_SECONDS = 5.0  # until a failed write is tried again
_ENDS_AT_ONCE = 64  # leases; one user can let hundreds expire in one moment, and each takes up to half a millisecond
_SILENT = "the user database does not answer which groups user {} is in, and a quota depends on that (see nsswitch.conf)"


class LeaseBook:
    """Guards that no lease or client gets what another has reserved."""

    def __init__(
        self,
        store: LeaseStore,
        devices: Callable[[], Sequence[Device]],
        settings: AdmissionSettings,
        identify: Identify,
        publish: Publish,
        clock: Callable[[], float] = time.time,
        *,
        find_process: Callable[[int], ProcessId | None] = processes.process_id,
        groups: UnixGroups | None = None,
        ranges: UidRanges = NO_RANGES,
        is_retained: Callable[[ProcessId], bool] = lambda process: False,
    ) -> None:
        """Restore what an earlier mpsd left in the store.  Raise UnusablePath.

        clock: seconds since the epoch.  find_process: the process with a pid, or None; raises OSError if it is not known.
        ranges: whose uids count as one user.  is_retained: whether the GPU memory of an ended client is not free yet.
        """
        self._store = store
        self._identify = identify
        self._find_process = find_process
        self._is_retained = is_retained
        self._news = LeaseEvents(publish)
        self._quotas = QuotaLimits(settings, devices, groups or UnixGroups(ranges.share_of), clock, ranges)
        self._account = Account()
        self._register = ActiveLeases(store, self._account, self._quotas)
        dealer = Dealer(lambda: self.settings, self._account, self._register.find, self._quotas.devices_of)
        self._clients = AdmittedClients(store, self._account, dealer, self._news, self._quotas)
        self._admissions = Admissions(self._quotas, self._account, self._register, self._clients, dealer, self._news)
        self._schedule = ExpiryTimer(clock)
        self._again_at = -math.inf  # until then no end is written, since the last write failed
        self._runs = False
        self._logged = Once()
        self._restore(store.is_new_boot)

    @property
    def settings(self) -> AdmissionSettings:
        return self._quotas.settings

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on.  Present leases and grants stay as they are."""
        self._quotas.configure(settings)
        self._admissions.advance()
        self._schedule.expect(self._quotas.clock())

    # -- leases ------------------------------------------------------------------------------------------------------

    async def meet(self, uid: int) -> None:
        """Find out which quotas apply to this user; call it before `create`.  Raise NoRoom."""
        if not await self._quotas.learn_groups(uid):
            raise NoRoom(_SILENT.format(uid))

    def create(self, owner_uid: int, spec: LeaseSpec, for_all_users: bool | None = None) -> Lease:
        """Create a lease: ACTIVE, or QUEUED if it does not fit and may wait; return the present one for a repeated request.

        for_all_users: an operator made it, and it serves all processes that it names; None: decide by `owner_uid`.  Raise
        BadRequest, NoSuchDevice, NotAllowed, NoRoom or TooMany.
        """
        is_for_all = owner_uid in self.settings.operators if for_all_users is None else for_all_users
        spec = with_start_time(check_spec(spec, self._quotas.devices()), self._find_process)
        spec = as_given(spec, self._quotas.devices_of(spec))
        made = self._register.made_by(owner_uid, spec.request_key, is_for_all=is_for_all) if spec.request_key else None
        if made is not None:
            return same_request(made, spec)
        now = self._quotas.clock()
        draft = Lease(0, owner_uid, spec, LeaseState.QUEUED, now, None, is_for_all)
        check_draft(draft, len(self._register), self._account, self._quotas)
        why = self._admissions.why_not_now(draft)
        if not why:
            draft = replace(draft, state=LeaseState.ACTIVE, expires_at=end_of(spec, now))
        elif not spec.wait_seconds:
            raise NoRoom(why)
        elif not self._admissions.line.has_place_for(owner_uid, self.settings):
            raise TooMany(f"the queue has no place for user {owner_uid}, and the lease has to wait: {why}")
        lease = self._register.add(draft)
        self._news.of_lease("created", lease)
        if why:
            self._admissions.line_up(lease, why)
            self._news.of_lease("queued", lease, reason=why)
            self._schedule.expect(now + spec.wait_seconds, now + AGING_SECONDS)
        self._admissions.lease_came(lease)
        self._admissions.catch_up()
        self._schedule.expect(lease.expires_at)
        return self._register.find(lease.id)

    def renew(self, lease_id: int, ttl_seconds: float | None) -> Lease:
        """Renew the lease for this time from now on; None: until it is released."""
        check_ttl(ttl_seconds)
        lease = self._register.renew(self._register.find(lease_id), ttl_seconds, self._quotas.clock())
        self._news.of_lease("renewed", lease)
        self._schedule.expect(lease.expires_at)
        return lease

    def release(self, lease_id: int) -> Lease:
        """End the lease and return its last value.  Its clients keep what they have until they end."""
        lease = self._register.find(lease_id)
        self._end_leases([lease], "released")
        return lease

    async def settled(self) -> None:
        """Return once all changes so far outlive a power cut.  Raise UnusablePath."""
        await self._store.settled()

    def leases(self) -> Sequence[Lease]:
        return self._register.all()

    def find(self, lease_id: int) -> Lease:
        return self._register.find(lease_id)

    # -- clients -----------------------------------------------------------------------------------------------------

    async def admit(self, process: ProcessId | None, credentials: Credentials, told: Callable[[str], None]) -> Grant:
        """Return the client's grant; wait as long as necessary.  The same process always gets the same answer.  Raise Refused;
        Unreadable if it is not known who the client is now: the caller reads it and asks again.

        told: called with each new reason for waiting.  If the call is cancelled, the client loses its place.
        """
        if process is None:
            return await self._admit_unseen(credentials, told)
        if process not in self._clients.grants:
            await self._learn_groups(process, credentials, told)
        answer = self._clients.grants.get(process) or self._admissions.line.find(process)
        answer = answer or self._admissions.ask(process, credentials, self._identify)
        if isinstance(answer, Grant):
            return answer
        self._catch_up()
        self._schedule.expect(answer.waiting.deadline, answer.waiting.arrived_at + AGING_SECONDS)
        try:
            return await self._admissions.wait(answer, told)
        finally:
            self._catch_up()  # if it gave up, others may go in

    def grant_of(self, process: ProcessId) -> Grant | None:
        return self._clients.grants.get(process)

    def grants(self) -> Mapping[ProcessId, Grant]:
        return MappingProxyType(self._clients.grants)

    def adopt(self, process: ProcessId, credentials: Credentials) -> Grant:
        """Return the grant of a client that an earlier mpsd admitted; one that is not in the store had no lease."""
        return self._clients.grants.get(process) or self._clients.take_in(process, credentials)

    def leave(self, process: ProcessId) -> None:
        """Free what an ended process held, and end the leases that name its pid.

        If its memory is retained, that counts on; call it again when the memory is free.
        """
        named = self._register.naming(process)
        is_retained = self._is_retained(process)
        was_client = self._clients.remove(process, is_stored=not named or is_retained, is_retained=is_retained)
        if named:
            self._end_leases_of_dead(named, process)
        elif was_client:
            self._catch_up()

    def identity_of(self, process: ProcessId) -> Identity | None:
        """Return the identity of a client, or of a process that waits."""
        entry = self._admissions.line.find(process)
        if entry is not None and entry.client is not None:
            return entry.client.identity
        return self._clients.identity_of(process, self._identify)

    def uid_of(self, process: ProcessId) -> int | None:
        """Return the uid of a client, or of a process that waits, without reading /proc."""
        entry = self._admissions.line.find(process)
        return entry.uid if entry is not None else self._clients.uid_of(process)

    @property
    def queued(self) -> int:
        return len(self._admissions.line)

    def queue(self) -> Sequence[QueueEntry]:
        """Return the queue in order; the first entry has position 1."""
        return self._admissions.queue()

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End what is over and admit entries in their turn, as long as mpsd lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_after_processes)
            self._runs = True
            try:
                while True:
                    await self._schedule.sleep_until(*self._end_and_admit())
            finally:
                self._runs = False

    def _end_and_admit(self) -> tuple[float | None, float | None, float | None]:
        """End some of what is over and admit entries; return when there is more to do."""
        self._end_what_is_over(self._quotas.clock(), _ENDS_AT_ONCE)
        self._admissions.advance()
        deadline, rise = self._admissions.next_change()
        later = None if rise is None else max(rise, self._quotas.clock() + _RANKS_SECONDS)
        if deadline is not None:
            deadline = max(deadline, min(self._again_at, self._quotas.clock() + _AGAIN_SECONDS))  # the clock may be set
        return self._register.next_end(), deadline, later

    def _end_what_is_over(self, now: float, most: int) -> None:
        due = self._register.due(now, most)
        if not self._try_to_end(due, now, "expired"):
            for lease in due:
                self._register.try_again_at(lease, self._again_at)
        self._try_to_end(self._admissions.refuse_overdue(now)[:most], now, "refused", _why_refused)

    def _try_to_end(self, leases: Sequence[Lease], now: float, what: str, facts_of: FactsOf = no_facts) -> bool:
        if not leases:
            return True
        if now < self._again_at <= now + _AGAIN_SECONDS:  # else the clock was set
            return False
        try:
            self._end_leases(leases, what, facts_of)
        except UnusablePath as exc:
            self._again_at = now + _AGAIN_SECONDS
            if self._logged.is_new(str(exc)):
                log.error("store.failed", statement=f"leases {what}: {len(leases)}", why=str(exc))
            return False
        self._again_at = -math.inf
        self._logged.clear()
        return True

    def _end_leases(
        self,
        leases: Sequence[Lease],
        what: str,
        facts_of: FactsOf = no_facts,
        process: ProcessId | None = None,
    ) -> None:
        """End the leases together: their waiting clients are matched once, and not for each lease that they would have next."""
        self._register.remove(leases, process)
        for lease in leases:
            self._news.of_lease(what, lease, **facts_of(lease))
        self._admissions.leases_went(leases)
        self._catch_up()

    def _catch_up(self) -> None:
        """Admit what can go in now: while `run` runs, once for all leases and processes that end in the same moment, and for
        all clients that come or stop waiting in it.

        To look through a full queue takes milliseconds, and one user's processes can come and end by the thousand.
        """
        if not self._runs:
            self._admissions.catch_up()
        elif self._admissions.is_behind():
            self._schedule.expect(-math.inf)

    def _end_leases_of_dead(self, leases: Sequence[Lease], process: ProcessId) -> None:
        try:
            grant_of = None if self._is_retained(process) else process
            self._end_leases(leases, "released", lambda lease: {"reason": "its process has ended"}, grant_of)
        except UnusablePath as exc:  # the next check of the processes finds it again
            log.error("store.failed", statement="the end of a process with leases", why=str(exc))

    async def _look_after_processes(self) -> None:
        """Check processes that leases name, which need not be clients, and clients, which may end before they are placed."""
        while True:
            everybody = {*self._register.processes(), *self._clients.grants, *self._clients.retained}
            await trio.sleep(_LOOK_SECONDS * max(1.0, len(everybody) / _LOOKS_A_ROUND))
            for number, process in enumerate(everybody):
                if not self._is_alive(process):
                    self.leave(process)
                if number % _LOOKS_AT_ONCE == _LOOKS_AT_ONCE - 1:
                    await trio.lowlevel.checkpoint()

    # -- steps -------------------------------------------------------------------------------------------------------

    async def _learn_groups(self, process: ProcessId, credentials: Credentials, told: Callable[[str], None]) -> None:
        """Return once the client's quotas are known; it waits, or is refused if that is configured.  Raise Refused."""
        while not await self._quotas.learn_groups(credentials.uid):
            why = _SILENT.format(credentials.uid)
            if may_be_told(self.settings):
                refused = Refused(self.settings.refuse_with, why)
                self._news.refused(process, credentials, refused)
                raise refused
            told(why)

    async def _admit_unseen(self, credentials: Credentials, told: Callable[[str], None]) -> Grant:
        """Admit a process in another pid namespace: mpsd would not see its end, so it gets nothing that is counted."""
        why = refusal_of(None, self.settings)
        if not why:
            self._news.admitted(None, credentials, UNSEEN)
            return UNSEEN
        if not may_be_told(self.settings):
            told(why)
            await trio.sleep_forever()  # as configured; its connection ends the wait
        refused = Refused(self.settings.refuse_with, why)
        self._news.refused(None, credentials, refused)
        raise refused

    def _is_alive(self, process: ProcessId) -> bool:
        try:
            return self._find_process(process.pid) == process
        except OSError:  # with some kernels its user can prevent the read (docs/decisions/029)
            return True

    def _restore(self, is_new_boot: bool) -> None:
        """Restore the leases and clients; end what ended while no mpsd ran."""
        self._quotas.learn_groups_now(self._store)
        self._register.restore()
        now = self._quotas.clock()
        for process in self._register.processes():
            if is_new_boot or not self._is_alive(process):
                self._end_leases_of_dead(self._register.naming(process), process)
        self._clients.restore(self._register.get, self._is_alive, self._is_retained)
        for lease in self._register.all():
            if lease.state is LeaseState.QUEUED:
                self._admissions.line_up(lease)
        self._end_what_is_over(now, len(self._register))
        self._admissions.advance()


def _why_refused(lease: Lease) -> Mapping[str, object]:
    return {"reason": f"it has waited for {lease.spec.wait_seconds:g} s, as long as it may"}
