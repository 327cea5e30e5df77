"""The sentinels of one domain, one for each GPU: their start in its server, their clients, and their end."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.handshake_gate import Entrant
from mpsd.domains.leftovers import is_vendors
from mpsd.domains.listed import listed_process
from mpsd.domains.pool import Pool
from mpsd.domains.rules import vendor_limits
from mpsd.domains.servers import ensure_server
from mpsd.domains.terminate_client import contained
from mpsd.errors import MpsdError, VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.sentinel.messages import SentinelKind, SentinelReport
from mpsd.sentinel.process import connect_sentinel, environment_of, socket_path, start_sentinel
from mpsd.sentinel.watcher import Watcher
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_AGAIN_SECONDS = 30.0  # after a failure clients go in without a sentinel for so long
_KNOWN_SECONDS = 2.0  # until a running one has reported its client's pid
_MOST_EARLY = 16  # named clients without a context, also such as had one: a sentinel has 64 places, a server 48


class SentinelSettings(Struct, frozen=True):
    """is_on: sentinels are started; is_required: no client starts in a domain without.  program: mpsd-sentinel."""

    is_on: bool
    is_required: bool
    start_seconds: float
    drain_seconds: float
    program: Path


class Protection(Struct):
    """Guards that the sentinels of a domain are all in its present server, and that their clients do not count.

    spawn: runs a task as long as mpsd.  heard: gets each report.  cut_off: called if a sentinel ends before its clients.
    """

    domain: Domain
    pool: Pool
    settings: SentinelSettings
    spawn: Callable[..., None]
    heard: Callable[["Protection", Watcher, SentinelReport], None]
    cut_off: Callable[["Protection", Watcher], None]
    watchers: dict[str, Watcher] = field(default_factory=dict)  # by GPU
    server: ServerView | None = None  # in which they are
    why_not: str = ""  # why no sentinel is ready
    _asides: int = 0  # blocks that forbid a start
    _ends: int = 0  # of these, the ones that end it whatever it contains
    _retry_at: float = -math.inf  # trio time
    _retry_uid: int | None = None  # the user for whom that is; None: for all
    _yielded_to: int | None = None  # the server with a memory fault for which the sentinels were ended last
    _one_at_a_time: trio.Lock = field(default_factory=trio.Lock)

    # -- for the domain (domains/sentinel_port.py) ---------------------------------------------------------------------

    @property
    def pids(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.pids for each in self.watchers.values()))

    @property
    def own_pids(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.own_pids for each in self.watchers.values()))

    async def take_over(self) -> None:
        for ordinal, gpu in enumerate(self.domain.gpus):
            peer = await run_in_thread(connect_sentinel, socket_path(self.domain.control.home.path, ordinal))
            if peer is not None:
                self._adopt(gpu, Watcher(gpu, peer, self._hear, self._note_end))
        with trio.move_on_after(_KNOWN_SECONDS):
            for watcher in list(self.watchers.values()):
                await watcher.known.wait()
        if self.watchers:
            log.info("sentinel.adopted", domain=self.domain.name, pids=sorted(self.pids))

    @asynccontextmanager
    async def aside(self, *, unless_contained: bool = False) -> AsyncIterator[None]:
        self._asides += 1
        self._ends += not unless_contained
        try:
            await self.end(unless_contained=unless_contained)
            if unless_contained and self.domain.state is DomainState.CONTAINED:
                raise VendorFailed(contained(self.domain))
            yield
        finally:
            self._asides -= 1
            self._ends -= not unless_contained
            self.pool.notify()

    async def give_way(self, *, unless_contained: bool = False) -> None:
        """End it, and start none until the domain's server has reported the fault.  unless_contained: as of `aside`."""
        self._yielded_to = self.server.pid if self.server else None
        self._retry_at, self._retry_uid = trio.current_time() + _AGAIN_SECONDS, None
        await self.end(unless_contained=unless_contained)

    async def end(self, *, unless_contained: bool = False) -> None:
        async with trio.open_nursery() as nursery:
            for watcher in list(self.watchers.values()):
                nursery.start_soon(partial(watcher.end, unless_contained=unless_contained))

    # -- start -------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether each GPU has a sentinel, and all of them are in a server that lives."""
        armed = [each for each in self.watchers.values() if each.is_armed]
        return len(armed) == len(self.domain.gpus) and self.server is not None and processes.lives(self.server.pid)

    @property
    def is_armed(self) -> bool:
        """Whether at least one GPU has a sentinel that lives."""
        return any(each.is_armed for each in self.watchers.values())

    def has_exception(self, gpu: str) -> bool:
        """Return whether the domain is contained, and the sentinel of this GPU has reported an exception, or has ended.

        Of the kernel's name of a GPU with MIG devices: whether any sentinel has.
        """
        watcher = self.watchers.get(gpu)
        return self.domain.state is DomainState.CONTAINED and (watcher is None or watcher.decided.is_set())

    def serves(self, uid: int) -> bool:
        """Return whether this user's next client will be in the server of the sentinels."""
        return self.is_ready and self.server is not None and (self.pool.settings.is_multiuser or self.server.uid == uid)

    @property
    def is_starting(self) -> bool:
        return self._one_at_a_time.locked()

    def may_start(self, uid: int) -> bool:
        """Return whether one may start in this user's server now.

        A failure delays only that user's: the stopped client is the user's, who can end it while it starts.
        """
        is_gone = self._yielded_to is not None and not processes.lives(self._yielded_to)
        is_due = trio.current_time() >= self._retry_at or is_gone or self._retry_uid not in (None, uid)
        return self.settings.is_on and not self._asides and is_due and self.domain.state is DomainState.READY

    async def start(self, uid: int) -> None:
        """Start the sentinels in this user's server, unless they are there; note why if that fails."""
        async with self._one_at_a_time:
            if self.serves(uid) or not self.may_start(uid):
                return
            try:
                with trio.fail_after(self.settings.start_seconds):
                    await self._start(uid)
            except (MpsdError, OSError) as exc:
                await self._give_up(uid, str(exc))
            except trio.TooSlowError:
                why = next((each.why for each in self.watchers.values() if each.why), "")
                await self._give_up(uid, why or f"it was not ready after {self.settings.start_seconds:g} s")

    async def _start(self, uid: int) -> None:
        """Start them while no client connects, so that the first client finds them, and finds its own limits."""
        await self.end()
        domain, control = self.domain, self.domain.control
        async with domain.guard.window(Entrant("sentinel"), control):
            seconds = self.pool.program.start_seconds
            self.server = await ensure_server(domain, uid, is_multiuser=self.pool.settings.is_multiuser, seconds=seconds)
            if domain.guard.is_on:
                defaults = vendor_limits.of_defaults(self.pool.defaults, domain.gpus)
                await domain.guard.set_limits(self.server.pid, vendor_limits.unlimited(domain.gpus), defaults, control)
            for ordinal, gpu in enumerate(domain.gpus):
                await self._start_one(gpu, ordinal, self.server.uid)  # not the user's, if it serves all users
            while not self.is_ready:
                if failed := next((each for each in self.watchers.values() if each.gone.is_set()), None):
                    raise VendorFailed(failed.why or "it ended")
                if len(self.watchers) < len(domain.gpus):
                    raise VendorFailed(self.why_not or "it ended")
                await self.pool.changed()
        self.why_not = ""
        log.info("sentinel.ready", domain=domain.name, server=self.server.pid, pids=sorted(self.pids))
        self.pool.notify()

    async def _start_one(self, gpu: str, ordinal: int, uid: int) -> None:
        control = self.domain.control
        command = control.reach(str(self.settings.program), "--fd", "0", "--uid", str(uid))
        environment = environment_of(control.environment(), gpu)
        path, inspector = socket_path(control.home.path, ordinal), self.pool.program.inspector
        peer = await run_in_thread(start_sentinel, inspector, path, command, environment)
        watcher = Watcher(gpu, peer, self._hear, self._note_end)
        self._adopt(gpu, watcher)
        if self._asides:  # since the program was asked for: the block found no sentinel to end
            await watcher.end()
            raise VendorFailed("it was ended while it started")
        await watcher.known.wait()
        if self.server and (server := processes.find(self.server.pid)):
            await watcher.attach(server)

    async def _give_up(self, uid: int, why: str) -> None:
        if self._asides:
            return  # another part of mpsd ended it
        self.why_not, self._retry_at, self._yielded_to = why, trio.current_time() + _AGAIN_SECONDS, None
        self._retry_uid = None if self.pool.settings.is_multiuser else uid
        effect = "no client starts there" if self.settings.is_required else "an SM exception there ends all clients"
        log.error("sentinel.not_ready", domain=self.domain.name, why=why, effect=effect)
        await self.end()
        self.pool.notify()

    # -- while they run ----------------------------------------------------------------------------------------------

    def find_server(self) -> None:
        """Find the server of sentinels that were taken over: its user is theirs."""
        if self.server is not None or not self.watchers:
            return
        owners = [found[0] for pid in self.pids if (found := processes.owner(pid))]
        fitting = (each for each in self.domain.servers.values() if self.pool.settings.is_multiuser or each.uid in owners)
        self.server = next(fitting, None)
        if self.server and (server := processes.find(self.server.pid)):
            for watcher in self.watchers.values():
                self.spawn(partial(watcher.attach, server))

    def restore(self, pid: int, at_ns: int) -> None:
        """Note a client of a contained domain, as it was at this time, that a restarted mpsd cannot ask for."""
        domain, vendor, process = self.domain, self.domain.control.process, processes.find_of(pid, at_ns)
        if process is None or vendor is None:
            return
        for server_pid in [each for each in processes.children(vendor.pid) if is_vendors(each)][:1]:
            uid = processes.real_uid(server_pid)
            known = domain.servers.get(server_pid) or ServerView(server_pid, uid, "ACTIVE", (), domain.name, domain.gpus)
            if pid not in known.client_pids:
                known = replace(known, client_pids=(*known.client_pids, pid))
            domain.servers[server_pid] = known
        if process not in domain.members:
            self.pool.take_over(domain, process, processes.real_uid(pid))

    async def name_clients(self) -> bool:
        """Name the domain's clients to each sentinel, which then holds them after an exception; return whether any is new.

        Of those without a context only few: a user can have thousands, each would take a place, and is looked at each time.
        """
        is_new, domain = False, self.domain
        at_work = domain.pids_at_work
        members = {each.pid: each for each in domain.members if each in domain.channels}
        listed = [found for pid in domain.client_pids - members.keys() if (found := listed_process(domain.admitted, pid))]
        for watcher in [each for each in self.watchers.values() if each.is_armed]:  # before that it may not read for seconds
            watcher.forget_gone()
            early = sum(each.pid not in at_work for each in watcher.added)
            for process in (*members.values(), *listed):
                is_early = process.pid not in at_work
                if (not is_early or early < _MOST_EARLY) and await watcher.add(process):
                    is_new, early = True, early + is_early
        return is_new

    def _adopt(self, gpu: str, watcher: Watcher) -> None:
        self.watchers[gpu] = watcher
        self.spawn(watcher.run)

    def _is_cut_off(self, watcher: Watcher) -> bool:
        """Return whether it ended before its clients, or with its server; it ends by itself after the last client."""
        is_gone = not self._ends and self.server is not None and not processes.lives(self.server.pid)
        return is_gone or any(map(processes.is_alive, watcher.added))

    def _hear(self, watcher: Watcher, report: SentinelReport) -> None:
        if report.kind is SentinelKind.STARTED:
            self.domain.mark_stale()  # it may have been listed before its pid was known
        self.heard(self, watcher, report)
        self.pool.notify()

    def _note_end(self, watcher: Watcher) -> None:
        if self.watchers.get(watcher.gpu) is watcher:
            del self.watchers[watcher.gpu]
        if watcher.why:
            self.why_not = watcher.why
        elif self._is_cut_off(watcher):  # the domain may be DEAD by now, with its vendor daemon
            self.cut_off(self, watcher)
        if self.domain.state is DomainState.CONTAINED and self.domain.client_pids and not self._ends:
            self.domain.state = DomainState.READY
            self.domain.fail()  # now the server ends its clients, as without a sentinel
            self.spawn(self.end)  # the stopped clients of other GPUs would keep the server from that
        log.info("sentinel.gone", domain=self.domain.name, gpu=watcher.gpu, why=watcher.why)
        self.pool.notify()
