"""Create, fill, restart and adopt the fault domains.

Each domain has one task that lives as long as the domain (lifecycle.py); upkeep.py decides about spares and recycling.  All
waits for a change of any domain use `changed()`.
"""

import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

import structlog
import trio
from msgspec import Struct
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.domain_view import view_of
from mpsd.domains.listed import has_lost_place, is_meant, may_be_used, pids_in_use
from mpsd.domains.log_follower import PublicLines
from mpsd.domains.orphaned_daemons import Outlived, find_unreachable
from mpsd.domains.placement_queue import NEW_USER, PlacementQueue
from mpsd.domains.placement_waits import PlacementWaits
from mpsd.domains.retained_memory import RetainedMemory
from mpsd.domains.rules.log_lines import News
from mpsd.domains.rules.names import name_of, number_of
from mpsd.domains.rules.placement import Create, Join, PlacementRequest, Rules, Wait, place
from mpsd.domains.sentinel_port import NoSentinel, SentinelPort
from mpsd.domains.services_port import NoServices, ServicesPort
from mpsd.domains.settings import PoolSettings
from mpsd.domains.store import SqliteStore
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.domains.vital_signs import look_now
from mpsd.errors import NoSuchServer, Stopping, VendorFailed
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.process_exit import ProcessExit, wait_ended
from mpsd.model.device import ComputeMode, Device
from mpsd.model.domain import Defaults, DomainState, DomainView
from mpsd.model.process import ProcessId
from mpsd.notify import Changed, Signal
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_REMOVE_SECONDS = 5.0


class Drained(Struct, frozen=True):
    """Why a GPU takes no new client, and since when, in seconds since the epoch."""

    why: str
    since_at: float


@dataclass(slots=True)
class Pool:
    """Guards the set of domains, and which process is a member of which."""

    settings: PoolSettings
    program: VendorProgram
    devices: tuple[Device, ...]
    defaults: Defaults
    store: SqliteStore
    public: PublicLines
    run_domain: Callable[["Pool", Domain], Awaitable[None]]  # runs a domain as long as it lives (lifecycle.py)
    domains: dict[str, Domain] = field(default_factory=dict)
    client_adopted: Signal[[ProcessId, Domain]] = field(default_factory=Signal)  # a client that an earlier mpsd admitted
    client_ended: Signal[[ProcessId, ProcessExit | None]] = field(default_factory=Signal)
    member_forgotten: Signal[[ProcessId, Domain]] = field(default_factory=Signal)  # it lives, and is in no domain now
    services: ServicesPort = field(default_factory=NoServices)
    sentinel_of: Callable[[Domain], SentinelPort] = lambda domain: NoSentinel()  # called with each new domain
    log_told: Signal[[Domain, News]] = field(default_factory=Signal)  # the news of a domain's log
    stopping: trio.Event = field(default_factory=trio.Event)  # set: mpsd takes no new clients
    drained: dict[str, Drained] = field(default_factory=dict)  # GPUs that take no new client, by their UUIDs
    waits: PlacementWaits = field(default_factory=PlacementWaits)
    ranges: UidRanges = NO_RANGES  # whose uids count as one user
    operators: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    last_join: float = -math.inf  # trio time
    last_uid: int = 0  # the user for whom a spare's server is started
    _watched: set[ProcessId] = field(default_factory=set)  # members, until they end
    _has_adopted: bool = False
    _next_number: int = 1
    _changed: Changed = field(default_factory=Changed)
    outlived: Outlived = field(default_factory=Outlived)
    retained: RetainedMemory = field(init=False)
    _queue: PlacementQueue = field(init=False)
    _nursery: trio.Nursery | None = None

    def __post_init__(self) -> None:
        self._queue = PlacementQueue(self, self.waits)
        self.retained = RetainedMemory(self.store, self.domains, self.changed)

    # -- views -------------------------------------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.devices)

    def views(self) -> list[DomainView]:
        return [view_of(domain, self.defaults) for domain in self.domains.values()]

    def rules(self, gpus: frozenset[str]) -> Rules:
        exclusive = any(d.compute_mode is ComputeMode.EXCLUSIVE_PROCESS for d in self.devices if d.uuid in gpus)
        return Rules(self.settings.max_domains, self.settings.is_multiuser, exclusive, self.operators, self.ranges)

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def home_of(self, process: ProcessId | None) -> Domain | None:
        return next((domain for domain in self.domains.values() if process in domain.members), None)

    def domain_of_server(self, pid: int) -> Domain:
        if (found := next((domain for domain in self.domains.values() if pid in domain.servers), None)) is not None:
            return found
        raise NoSuchServer(f"Server {pid} not found")

    def domain_of(self, process: ProcessId) -> Domain | None:
        """Return the domain of a vendor server, a client or a sentinel's client; a list may mean an ended one with its pid."""
        listing = (d for d in self.domains.values() if process.pid in pids_in_use(d) and is_meant(d.admitted, process))
        return self.home_of(process) or next(listing, None)

    def default_domain(self) -> Domain:
        """Return the domain that answers for all where only one can: the oldest that is alive, of all GPUs."""
        ours = [d for d in self.domains.values() if d.gpus == self.gpus]
        alive = [d for d in ours if d.state in (DomainState.READY, DomainState.FAULT, DomainState.RECYCLING)]
        if not alive:
            raise VendorFailed("no fault domain is running: see mpsd.log for why, and try again in a moment")
        return min(alive, key=lambda domain: domain.number)

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.notify()
        self._queue.look_soon()

    async def changed(self) -> None:
        await self._changed.wait()

    def hear(self, domain: Domain, news: News) -> None:
        """Take the news of a domain's log; drop what is about no server of the domain."""
        if not domain.is_plausible(news):
            return
        domain.hear(news)
        self.log_told.emit(domain, news)
        self.notify()

    # -- placing -----------------------------------------------------------------------------------------------------

    def placement_of_a_newcomer(self, views: list[DomainView]) -> Join | Create | Wait:
        """Return where a client of a user without a domain would go now."""
        return self.decide(PlacementRequest(NEW_USER, frozenset(self.gpus)), None, views)

    async def place(self, ask: PlacementRequest, process: ProcessId | None) -> Domain:
        """Return the domain that this process joins, once one takes it.  Raise Stopping if mpsd quits during the wait."""
        if (domain := self._home_now(ask, process)) is not None:
            return domain
        if self._queue.is_empty and (domain := self.place_now(ask, process)) is not None:
            return domain
        return await self._queue.wait(ask, process)

    def begin_domain(self, decision: Create) -> None:
        for name in decision.instead:
            self.domains[name].is_draining = True  # upkeep.py retires it
        self.create(tuple(uuid for uuid in self.gpus if uuid in decision.gpus))

    def place_now(self, ask: PlacementRequest, process: ProcessId | None) -> Domain | None:
        """Return the domain of this process, or one that takes it at once; None when it has to wait.  Raise Stopping."""
        if (home := self._home_now(ask, process)) is not None:
            return home
        while isinstance(decision := self.decide(ask, process, self.views()), Join):
            domain = self.domains[decision.domain]
            if not look_now(domain):
                return self._join(domain, ask, process)
            self.notify()  # upkeep replaces it
        return None

    def _home_now(self, ask: PlacementRequest, process: ProcessId | None) -> Domain | None:
        """Return the domain that the process is in and stays in.  Raise Stopping."""
        if self.is_stopping:
            raise Stopping("mpsd is quitting and takes no new clients")
        if process is None or (home := self.home_of(process)) is None:
            return None
        look_now(home)
        return home if self._is_bound(home, ask, process) else None

    def avoid(self, process: ProcessId | None) -> frozenset[str]:
        """Return the domains in which the process would share the fate of another member of its service."""
        return self.services.domains_of_others(process, self._domains_of)

    def _domains_of(self, processes: Collection[ProcessId]) -> set[str]:
        pids = {process.pid for process in processes}
        return {domain.name for domain in self.domains.values() if not pids.isdisjoint(domain.known_pids)}

    def name_of_domain(self, process: ProcessId) -> str:
        """Return the domain of a process; empty: it is not known."""
        return "" if (found := self.domain_of(process)) is None else found.name

    def decide(self, ask: PlacementRequest, process: ProcessId | None, views: list[DomainView]) -> Join | Create | Wait:
        if others := self.avoid(process):
            ask = replace(ask, avoid=others)
        if drained := sorted(self.drained_of(ask)):
            return Wait(f"GPU {drained[0]} takes no clients: {self.drained[drained[0]].why}")
        return place(ask, views, self.rules(ask.gpus))

    def drained_of(self, ask: PlacementRequest) -> frozenset[str]:
        """Return the drained GPUs that the client can use; nothing else of a decision depends on `named`."""
        return (ask.named or ask.gpus).intersection(self.drained)

    def drain_gpu(self, uuid: str, why: str) -> None:
        """Place no new client where this GPU is; present ones may continue as far as the GPU lets them."""
        self.drained.setdefault(uuid, Drained(why, time.time()))
        self.notify()

    def restore_gpu(self, uuid: str) -> bool:
        """Let the GPU take clients again.  Return False if it was not drained."""
        was_drained = self.drained.pop(uuid, None) is not None
        self.notify()
        return was_drained

    def _is_bound(self, home: Domain, ask: PlacementRequest, process: ProcessId) -> bool:
        """Return whether the process stays: with a context it has to, else it leaves one that is ill, or of another key."""
        if home.state in (DomainState.DEAD, DomainState.GONE, DomainState.STOPPING):
            return False
        if has_lost_place(home, process, ask.key) or (home.is_ill and process not in home.connected):
            home.leave(process)
            return False
        return True

    def _join(self, domain: Domain, ask: PlacementRequest, process: ProcessId | None) -> Domain:
        self.last_join, self.last_uid = trio.current_time(), ask.uid
        if not domain.is_public or domain.key != ask.key:
            self.store.save_domain(domain.name, domain.number, domain.gpus, True, ask.key)
        domain.join(process, ask.uid, ask.key)
        self.watch(domain, process)
        self._queue.note_placed(process)
        self.notify()
        return domain

    def watch(self, domain: Domain, process: ProcessId | None, uid: int | None = None) -> None:
        """Store a process that has a channel: to the next mpsd it is a client.  Remove any process once it has ended.  uid: its
        user, where it may have left the domain."""
        if process is not None and self._nursery is not None:
            if process in domain.channels and (uid := domain.uids.get(process, uid)) is not None:
                self.store.save_member(domain.name, process, uid)
            if process not in self._watched:  # it may change its domain as often as it likes
                self._watched.add(process)
                self._nursery.start_soon(self._watch, process)

    def forget_absent(self) -> None:
        """Forget the members that are not there any more (Domain.forget_absent)."""
        for domain in self.domains.values():
            if absent := domain.forget_absent():
                for process in absent:
                    self.member_forgotten.emit(process, domain)
                self.notify()

    def attach(self, domain: Domain, process: ProcessId | None, uid: int | None) -> None:
        """Note that a process of this user may have a channel to a server of the domain, to its end."""
        domain.attach(process)
        if process in domain.channels:  # else it has ended
            self.watch(domain, process, uid)

    def take_over(self, domain: Domain, process: ProcessId, uid: int) -> None:
        """Know again a client that an earlier mpsd admitted, which may have a channel."""
        domain.admit(process)
        domain.join(process, uid, domain.key)
        self.attach(domain, process, uid)
        self.client_adopted.emit(process, domain)

    async def _watch(self, process: ProcessId) -> None:
        ending = await wait_ended(process)  # for ever: a client may live as long as it likes
        await trio.lowlevel.checkpoint()  # what a sentinel reported before the end is known first
        self._watched.remove(process)
        homes = [domain for domain in self.domains.values() if may_be_used(domain, process)]
        for domain in homes:
            domain.leave(process, has_ended=True)  # no later look frees its place, if its user is unread now
        if self._nursery is None or not self.retained.note_end(homes, process, self._nursery):
            self.store.forget_member(process)
        self.client_ended.emit(process, ending)
        self.notify()

    # -- domains -----------------------------------------------------------------------------------------------------

    def create(self, gpus: tuple[str, ...], name: str | None = None, number: int | None = None) -> Domain:
        """Create a domain; it is STARTING until its vendor daemon listens."""
        number = number or self._next_number
        self._next_number = max(self._next_number, number + 1)
        name = name or name_of(number)
        control = VendorControl(self.program, self.settings.home / name)
        domain = Domain(name, number, gpus, control, self.settings.capacity(gpus))
        domain.sentinel = control.sentinel = self.sentinel_of(domain)
        self.domains[name] = domain
        self.store.save_domain(name, number, gpus, False)
        assert self._nursery is not None, "domains live in run()"
        self._nursery.start_soon(self.run_domain, self, domain)
        self.notify()
        return domain

    def adopt(self, name: str, number: int, gpus: tuple[str, ...], is_public: bool, key: str) -> None:
        """Take over a domain of an earlier mpsd.  If its vendor daemon died: start the first one again, remove another."""
        control = VendorControl(self.program, self.settings.home / name)
        if control.adopt() is None and number != 1:
            self.store.forget_domain(name)
            shutil.rmtree(self.settings.home / name, ignore_errors=True)
            return
        domain = self.create(gpus, name, number)
        domain.is_adopted = domain.control.adopt() is not None
        domain.is_public, domain.key = is_public, key
        if domain.is_adopted and self._nursery is not None:
            self.retained.adopt(domain, self._nursery)
        if (baselines := self.store.baselines(name)) is not None:
            domain.guard.is_on, domain.guard.baselines = True, baselines
        log.info("domain.adopted", domain=name, vendor_pid=domain.control.process and domain.control.process.pid)

    def _adopt_forgotten(self, known: set[str]) -> None:
        """Take over domains with a running vendor daemon that the database does not have.

        Their clients continue.  Their limits are not known, so these domains take no new client and end after their last one.
        """
        for home in sorted(self.settings.home.glob("*")):
            if home.name in known or (number := number_of(home.name)) is None:
                continue
            control = VendorControl(self.program, home)
            process = control.adopt()
            if process is None:
                continue
            visible = control.visible_devices().split(",")
            gpus = tuple(uuid for uuid in self.gpus if uuid in visible) or self.gpus
            self.adopt(home.name, number, gpus, is_public=True, key="")
            self.domains[home.name].is_draining = True
            effect = "it takes no new clients, and is ended when its clients have ended"
            log.warning("domain.forgotten", domain=home.name, vendor_pid=process.pid, effect=effect)

    async def run(self, known: Iterable[tuple[str, int, tuple[str, ...], bool, str]], *, task_status: trio.TaskStatus) -> None:
        """Run as long as mpsd; report `started` once the domains of an earlier mpsd are adopted."""
        async with trio.open_nursery() as self._nursery:
            unreachable = await find_unreachable(self.settings.home, self.program.inspector)
            rows = sorted(known, key=lambda row: row[1])
            for row in rows:
                self.adopt(*row)
            self._adopt_forgotten({row[0] for row in rows})
            self._has_adopted, self.retained.has_adopted = bool(self.domains), True
            adopted = {domain.control.process for domain in self.domains.values()}
            not_adopted = [each for each in unreachable if each not in adopted]
            self._nursery.start_soon(self.outlived.run, self.settings.home, not_adopted)
            if not any(domain.number == 1 for domain in self.domains.values()):
                self.create(self.gpus)
            task_status.started()
            await self._queue.run()  # the domains' tasks end when the nursery is cancelled

    async def settled(self) -> None:
        """Wait until every domain takes clients or has failed: until then a connecting process may be a client of any of them.
        Raise VendorFailed if the first domain cannot be started."""
        while any(domain.state is DomainState.STARTING and not domain.trouble for domain in self.domains.values()):
            await self.changed()
        if self._has_adopted:
            return  # clients may be running: in spite of any failure, mpsd serves them
        if dead := [domain for domain in self.domains.values() if domain.state is DomainState.DEAD]:
            raise VendorFailed(f"the first fault domain does not start: {dead[0].trouble}")

    async def remove(self, domain: Domain) -> None:
        """Remove a domain that has ended for good."""
        domain.state = DomainState.GONE
        del self.domains[domain.name]
        self.store.forget_domain(domain.name)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_SECONDS):
            await run_in_thread(shutil.rmtree, self.settings.home / domain.name, True)  # errors are ignored
        log.info("domain.gone", domain=domain.name)
        self.notify()

    def begin_guarding(self, domain: Domain) -> None:
        """Guard a domain without servers, so that its servers give nothing to clients at the domain's own socket."""
        if self.settings.is_guarded:
            domain.guard.is_on = True
            self.store.save_baselines(domain.name, {})

    # -- settings ----------------------------------------------------------------------------------------------------

    async def set_defaults(self, defaults: Defaults) -> None:
        """Set the limits of servers that start from now on.  Raise VendorFailed if a domain does not take them; it takes no
        clients until it has."""
        self.store.save_defaults(defaults)
        self.defaults = defaults
        failures: list[VendorFailed] = []

        async def apply(domain: Domain) -> None:
            try:
                await domain.apply_defaults(defaults)
            except VendorFailed as exc:
                failures.append(exc)

        async with trio.open_nursery() as nursery:  # a domain that hangs delays no other
            for domain in self.domains.values():
                if domain.state in (DomainState.READY, DomainState.FAULT, DomainState.RECYCLING):
                    nursery.start_soon(apply, domain)
        self.notify()
        if failures:
            raise failures[0]
