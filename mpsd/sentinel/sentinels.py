"""The sentinels of all domains: before a domain's first client they are started, and started again when they end early."""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.listed import pids_of_xids
from mpsd.domains.pool import Pool
from mpsd.errors import MpsdError, VendorFailed
from mpsd.model.domain import DomainState
from mpsd.model.fault import FaultClass, Observation
from mpsd.model.xid import ENDS_SERVER, meaning_of, named_pid
from mpsd.notify import Signal
from mpsd.sentinel.containment import Containment
from mpsd.sentinel.messages import SentinelKind, SentinelReport
from mpsd.sentinel.protection import Protection, SentinelSettings
from mpsd.sentinel.watcher import Watcher

log = structlog.get_logger()
# An Xid comes 12 to 17 ms after the launch, the sentinel's event 4 to 54 ms after it (H200).
_HOLD_SECONDS = 0.25
_REPORT_SECONDS = 2.0  # the longest time to the first event of a session was 0.3 s
_TEST_AGAIN_SECONDS = 60.0


class Sentinels(Struct):
    """Guards that each domain has one protection from its creation on, and that none is started unproven.

    prove: returns why a sentinel did not contain an exception here; "": it did.  Raises MpsdError or OSError if the test could
    not be made.  None: no proof is wanted.
    """

    pool: Pool
    settings: SentinelSettings
    prove: Callable[[], Awaitable[str]] | None = None
    why_off: str = ""  # why the proof failed
    observed: Signal[[Observation]] = field(default_factory=lambda: Signal[[Observation]]())
    is_told: Callable[[str, int], bool] = lambda domain, time_ns: False  # whether a fault there and then is known
    _contained: dict[tuple[str, str], Containment] = field(default_factory=dict)  # by domain and GPU
    _protections: dict[str, Protection] = field(default_factory=dict)
    _nursery: trio.Nursery | None = None
    _tested: trio.Event = field(default_factory=trio.Event)

    def protect(self, domain: Domain) -> Protection:
        """Return the sentinels of a new domain: none runs yet."""
        made = Protection(domain, self.pool, self.settings, self._spawn, self._hear, self._cut_off)
        self._protections[domain.name] = made
        return made

    async def prepare(self, domain: Domain, uid: int) -> None:
        """Return when a client of this user may connect to the domain.  Raise VendorFailed if it may not, for now."""
        protection = self._protections.get(domain.name)
        if protection is None or not self.settings.is_on or protection.serves(uid):
            return
        with trio.move_on_after(self.settings.start_seconds):
            await self._tested.wait()
        if self._is_allowed and protection.may_start(uid):
            ready = trio.Event()
            self._spawn(partial(_then, partial(protection.start, uid), ready))
            await ready.wait()  # a start ends within its seconds
        if self.settings.is_required and not protection.serves(uid):
            raise VendorFailed(f"domain {domain.name} has no sentinel: {self._why_none() or protection.why_not}")

    @property
    def _is_allowed(self) -> bool:
        return self.settings.is_on and self._tested.is_set() and not self.why_off

    def _why_none(self) -> str:
        """Return why no domain gets a sentinel; empty if they do."""
        if not self._tested.is_set():
            return "the self-test is not over"
        return f"the self-test failed: {self.why_off}" if self.why_off else ""

    def status(self) -> str:
        """Return whether domains get sentinels, in words."""
        if not self.settings.is_on:
            return "off"
        why = self._why_none()
        return f"none is started: {why}" if why else "on" + ("" if self.prove is None else ", tested here")

    async def _test(self) -> None:
        """Test; where clients wait for a sentinel, repeat a test that could not be made: a user may have filled the GPU."""
        while True:
            is_made = await self._try_to_test()
            if is_made or not self.settings.is_required:
                return
            await trio.sleep(_TEST_AGAIN_SECONDS)

    async def _try_to_test(self) -> bool:
        """Return whether the test could be made."""
        before, is_made = self.why_off, True
        try:
            self.why_off = await self.prove() if self.prove is not None else ""
        except (MpsdError, OSError) as exc:
            self.why_off, is_made = str(exc), False
        if self.why_off and self.why_off != before:
            log.error("sentinel.off", why=self.why_off, effect="an SM exception ends all clients of its domain")
        self._tested.set()
        self.pool.notify()
        return is_made

    def give_way(self, seen: Observation) -> None:
        """End the sentinels of a domain with a memory fault: its server can then end its clients, as without them.

        The fault is proven, or the driver has reported it: a client can prevent the proof, and one that was killed makes none.
        The Xid names the process of a context, or the server, as after a client was killed in mid-kernel (measured).  A process
        that was only placed there can have caused it elsewhere, even past MPS.
        """
        protection = self._protections.get(seen.domain)
        if protection is None or not protection.watchers or seen.is_contained:
            return
        is_memory_fault = seen.xid in ENDS_SERVER and meaning_of(seen.xid).fault_class is FaultClass.MMU
        is_reported = is_memory_fault and named_pid(seen.text) in pids_of_xids(protection.domain)
        if is_reported or (seen.fault_class is FaultClass.MMU and seen.is_proof):
            self._spawn(protection.give_way)

    def pass_on(self, seen: Observation) -> None:
        """Pass an observation on.  An Xid of an SM exception waits a moment for the sentinel of its domain.

        If the sentinel reports an exception, the Xid is of that one, and ends no server.
        """
        protection = self._protections.get(seen.domain)
        is_exception = seen.xid in ENDS_SERVER and meaning_of(seen.xid).fault_class is FaultClass.SM
        if protection is None or not is_exception or not (protection.watchers or protection.is_starting):
            self.observed.emit(seen)
            return
        self._spawn(partial(self._end_silent, protection, seen.gpu, named_pid(seen.text)))
        if not protection.is_armed:
            self.observed.emit(seen)
        elif protection.domain.state is DomainState.CONTAINED:
            self.observed.emit(replace(seen, is_contained=True))
        else:
            self._spawn(partial(self._pass_on_late, protection, seen))

    async def _pass_on_late(self, protection: Protection, seen: Observation) -> None:
        domain = protection.domain
        with trio.move_on_after(_HOLD_SECONDS):
            while protection.is_armed and domain.state is not DomainState.CONTAINED:
                await self.pool.changed()
        is_contained = protection.is_armed and domain.state is DomainState.CONTAINED
        self.observed.emit(replace(seen, is_contained=is_contained))

    async def _end_silent(self, protection: Protection, gpu: str, server_pid: int | None) -> None:
        """End the sentinels in this server unless that of the GPU reports an exception: one can come just before it is armed.

        Their stopped clients keep the server from ending the others, and no RESUME comes: all would hang.
        """
        domain = protection.domain
        with trio.move_on_after(_REPORT_SECONDS):
            while not protection.has_exception(gpu):
                await self.pool.changed()
        if not protection.has_exception(gpu) and protection.watchers and server_pid in domain.servers:
            await protection.give_way(unless_contained=domain.state is not DomainState.CONTAINED)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.own_pids for each in self._protections.values()))

    def problems(self) -> list[str]:
        """Return why no client starts: each needs a sentinel, and none is started."""
        is_barred = self.settings.is_on and self.settings.is_required and self.why_off
        return [f"sentinels are off, so that no client starts: {self._why_none()}"] if is_barred else []

    def warnings(self) -> list[str]:
        """Return the domains with clients that lack the sentinel that they should have."""
        if not self.settings.is_on:
            return []
        if self.why_off:
            return [f"sentinels are off, so that an SM exception ends all clients of its domain: {self._why_none()}"]
        return [
            f"domain {each.domain.name} has no sentinel, so that an SM exception there ends all its clients: {each.why_not}"
            for each in self._protections.values()
            if each.why_not and each.domain.occupancy and not each.is_ready
        ]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run as long as mpsd; start it before the pool."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            self._nursery.start_soon(self._test)
            while True:
                for name in self._protections.keys() - self.pool.domains.keys():
                    del self._protections[name]
                    self._contained = {key: each for key, each in self._contained.items() if key[0] != name}
                if not any([await self._look(each) for each in list(self._protections.values())]):
                    await self.pool.changed()

    async def _look(self, protection: Protection) -> bool:
        """Do what is due; return whether it took time, in which changes can have been missed."""
        domain = protection.domain
        if not self.settings.is_on and protection.watchers:
            self._spawn(protection.end)  # sentinels were on in an earlier mpsd
            return False
        protection.find_server()
        is_new = await protection.name_clients()
        started = next((each for each in domain.servers.values() if each.status == "ACTIVE"), None)
        server = (protection.server or started) if domain.client_pids else started  # of a spare: so that no client waits
        is_due = not protection.is_ready and not protection.is_starting and self._is_allowed
        if server is not None and is_due and protection.may_start(server.uid):
            self._spawn(partial(protection.start, server.uid))
        return is_new

    def _hear(self, protection: Protection, watcher: Watcher, report: SentinelReport) -> None:
        domain, name = protection.domain, (protection.domain.name, watcher.gpu)
        if report.kind is SentinelKind.STARTED:
            seconds = self.settings.drain_seconds
            self._contained[name] = Containment(domain, watcher.gpu, seconds, self.observed.emit, self.is_told)
        if (contained := self._contained.get(name)) is not None:
            contained.hear(report, set(watcher.added), self._spawn)
            if report.kind is SentinelKind.HOLDS:
                protection.restore(report.pid, report.time_ns)
        log.debug("sentinel.report", domain=protection.domain.name, gpu=watcher.gpu, kind=report.kind.name, pid=report.pid,
                  status=report.status, count=report.count, at_ns=report.time_ns, warp_esr=report.warp_esr,
                  global_esr=report.global_esr, pc=report.pc, is_culprit=report.is_culprit,
                  mapping_bytes=report.mapping_bytes)  # fmt: skip

    def _cut_off(self, protection: Protection, watcher: Watcher) -> None:
        if (contained := self._contained.get((protection.domain.name, watcher.gpu))) is not None:
            contained.cut_off()

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "sentinels are started in run()"
        self._nursery.start_soon(task)


async def _then(task: Callable[[], Awaitable[None]], done: trio.Event) -> None:
    try:
        await task()
    finally:
        done.set()
