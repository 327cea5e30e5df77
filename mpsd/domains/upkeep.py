"""Keep spares, restore faulty domains and retire idle ones, without a request."""

import os
from collections.abc import Awaitable, Callable

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.handshake_gate import Entrant
from mpsd.domains.listed import may_live
from mpsd.domains.pool import Pool
from mpsd.domains.rules.spares import SparePlan, plan_spares
from mpsd.errors import MpsdError, VendorFailed
from mpsd.host import processes
from mpsd.model.device import Device
from mpsd.model.domain import DomainState

log = structlog.get_logger()
_LOOK_SECONDS = 5.0
_SPARE_PAUSE_SECONDS = 0.5
_SPARE_LATEST_SECONDS = 2.0
_POLL_SECONDS = 0.05
_DESERTED_SECONDS = 5.0  # usually it is over 0.1 s after the last client


class Upkeep:
    """Guards that at most one action at a time works on each domain."""

    def __init__(self, pool: Pool, stop_seconds: float, read_devices: Callable[[], Awaitable[tuple[Device, ...]]]) -> None:
        self._pool = pool
        self._stop_seconds = stop_seconds
        self._read_devices = read_devices
        self._busy: set[str] = set()
        self._deserted_since: dict[str, float] = {}  # domains in FAULT without a living client (trio time)
        self._needed_since: dict[tuple[str, ...], float] = {}  # when each set of GPUs came to need a spare
        self._making: set[tuple[str, ...]] = set()  # sets of GPUs for which a task makes spares

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            while not self._pool.is_stopping:
                try:
                    self._look(nursery)
                except MpsdError as exc:
                    log.warning("upkeep.failed", why=str(exc))
                with trio.move_on_after(self._next_look()):
                    await self._pool.changed()

    def _next_look(self) -> float:
        due = [self._spare_due(gpus) - trio.current_time() for gpus in self._needed_since.keys() - self._making]
        return max(0.01, min([_LOOK_SECONDS, *due]))

    def _look(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        self._pool.forget_absent()
        for domain in list(self._pool.domains.values()):
            if domain.occupancy:
                domain.idle_since = now
            if domain.name in self._busy:
                continue
            if domain.is_unusable and domain.state in (DomainState.READY, DomainState.FAULT) and self._is_empty(domain):
                self._begin(nursery, domain, self._replace)
            elif domain.control.was_left_exposed and domain.state is DomainState.READY and not domain.occupancy:
                self._begin(nursery, domain, self._close_off)
            elif domain.is_draining and domain.state is DomainState.READY and not domain.occupancy:
                self._begin(nursery, domain, self._finish_draining)
            elif domain.has_recovered or (domain.state is DomainState.READY and self._is_outdated(domain)):
                self._begin(nursery, domain, self.recycle)
            elif self._is_drained(domain, now):
                self._begin(nursery, domain, self._end_contained)
            elif self._is_overdue(domain, now):
                self._begin(nursery, domain, self._restart)
            elif domain.state is DomainState.READY and domain.applied_defaults != self._pool.defaults:
                self._begin(nursery, domain, self._reapply)
        for gpus in {domain.gpus for domain in self._pool.domains.values()}:
            if self._has_drained(gpus):
                self._needed_since.pop(gpus, None)
            else:
                self._keep_spares(nursery, gpus)

    def _has_drained(self, gpus: tuple[str, ...]) -> bool:
        return not self._pool.drained.keys().isdisjoint(gpus)

    def _is_outdated(self, domain: Domain) -> bool:
        return domain.has_outdated_spare(self._pool.defaults)

    def _is_overdue(self, domain: Domain, now: float) -> bool:
        """Return whether a domain in FAULT has to be restarted.

        Either it faulted long ago, and clients that have lost everything there keep it from others; or all have ended and its
        vendor daemon has not noticed it: after some faults it hangs (measured).
        """
        if domain.state is not DomainState.FAULT:
            self._deserted_since.pop(domain.name, None)
            return False
        if self._lives(domain):
            self._deserted_since.pop(domain.name, None)
        else:
            self._deserted_since.setdefault(domain.name, now)
        deserted = now - self._deserted_since.get(domain.name, now)
        limit = self._pool.settings.recycle_seconds
        return deserted > _DESERTED_SECONDS or 0 < limit < now - domain.fault_since

    def _is_drained(self, domain: Domain, now: float) -> bool:
        """Return whether a domain with a contained exception has lost its last client, or its time is over."""
        if domain.state is not DomainState.CONTAINED or domain.is_adopted:  # then its clients are not known yet
            return False
        return now >= domain.ends_by or not self._lives(domain)

    @staticmethod
    def _lives(domain: Domain) -> bool:
        """Return whether a client of the domain lives; one that has left does not count."""
        listed, ours = domain.client_pids, os.getpid()  # ours stands for clients that mpsd does not see
        if any(map(processes.is_alive, domain.members)) or domain.unseen.may_live(is_listed=ours in listed):
            return True
        return any(may_live(domain.admitted, pid) for pid in listed - {ours})

    def _is_empty(self, domain: Domain) -> bool:
        """Return whether the domain has no clients.  A server that does not answer lists those that have ended, too."""
        return not domain.occupancy or not self._lives(domain)

    def _begin(self, nursery: trio.Nursery, domain: Domain, action: Callable[[Domain], Awaitable[None]]) -> None:
        self._busy.add(domain.name)
        nursery.start_soon(self._do, domain, action)

    async def _do(self, domain: Domain, action: Callable[[Domain], Awaitable[None]]) -> None:
        try:
            await action(domain)
        except MpsdError as exc:
            log.error("domain.upkeep_failed", domain=domain.name, action=action.__name__, why=str(exc))
            await trio.sleep(self._pool.settings.restart_seconds)
        finally:
            self._busy.discard(domain.name)
            self._pool.notify()

    # -- spares ------------------------------------------------------------------------------------------------------

    def _keep_spares(self, nursery: trio.Nursery, gpus: tuple[str, ...]) -> None:
        plan = self._plan(gpus)
        for name in plan.retire:
            self._begin(nursery, self._pool.domains[name], self.retire)
        if not (plan.create or set(plan.warm) - self._busy):
            self._needed_since.pop(gpus, None)
        elif gpus not in self._making and trio.current_time() >= self._spare_due(gpus):
            self._making.add(gpus)
            nursery.start_soon(self._make_spares, nursery, gpus)

    def _plan(self, gpus: tuple[str, ...]) -> SparePlan:
        pool, now, whole = self._pool, trio.current_time(), frozenset(gpus)
        ours = [domain for domain in pool.domains.values() if domain.gpus == gpus]
        idle = frozenset(d.name for d in ours if now - d.idle_since > pool.settings.idle_seconds)
        return plan_spares(whole, pool.views(), idle - self._busy, pool.settings.spares, pool.rules(whole))

    async def _make_spares(self, nursery: trio.Nursery, gpus: tuple[str, ...]) -> None:
        """Make the spares that are due, in a task: NVML may not answer for long, and all domains need upkeep."""
        pool = self._pool
        try:
            pool.devices = await self._read_devices()  # an operator may have changed the compute mode
        except MpsdError as exc:  # NVML lost a GPU: spares of the others are made all the same
            log.warning("upkeep.failed", why=str(exc))
        finally:
            self._making.discard(gpus)
        if pool.is_stopping or self._has_drained(gpus) or pool.rules(frozenset(gpus)).is_exclusive:
            return  # perhaps since NVML was asked
        plan = self._plan(gpus)  # the domains may have changed
        for _ in range(plan.create):
            pool.create(gpus)
        for name in set(plan.warm) - self._busy:
            self._begin(nursery, pool.domains[name], self._warm)

    def _spare_due(self, gpus: tuple[str, ...]) -> float:
        """Return when to start a spare.

        It waits for a pause in the arrivals, since a server's start slows clients that start at the same time; but not for
        ever.
        """
        since = self._needed_since.setdefault(gpus, trio.current_time())
        return min(self._pool.last_join + _SPARE_PAUSE_SECONDS, since + _SPARE_LATEST_SECONDS)

    async def _warm(self, domain: Domain) -> None:
        """Start a spare's server, so that its first client need not wait for it."""
        async with domain.guard.window(Entrant("spare"), domain.control):
            if domain.occupancy:
                return  # a client came first, and another user's server would end the one that it waits for
            seconds = self._pool.program.start_seconds
            domain.served_defaults = domain.applied_defaults
            await domain.control.command(f"start_server -uid {self._pool.last_uid}", seconds)
        with trio.move_on_after(seconds) as waiting:
            while domain.state is DomainState.READY and not any(s.status == "ACTIVE" for s in domain.servers.values()):
                domain.mark_stale()
                await domain.refresh()
                await trio.sleep(_POLL_SECONDS)
        if waiting.cancelled_caught:
            raise VendorFailed(f"the server of spare {domain.name} did not start in {seconds:g} s")
        log.info("domain.spare_ready", domain=domain.name, uid=self._pool.last_uid)

    # -- recovery and retirement -------------------------------------------------------------------------------------

    async def _reapply(self, domain: Domain) -> None:
        await domain.apply_defaults(self._pool.defaults)

    async def _replace(self, domain: Domain) -> None:
        """Kill a vendor daemon that does not answer and has no clients; its domain's task starts another."""
        if not self._is_empty(domain):
            return  # a client came in the meantime
        why = domain.hindrance or "its vendor daemon does not answer"
        log.error("domain.kill", domain=domain.name, why=f"{why}; it has no clients")
        domain.state = DomainState.RECYCLING
        self._pool.notify()
        await self._kill(domain)

    async def _kill(self, domain: Domain) -> None:
        """Kill the vendor daemon.  Raise VendorFailed if it has not ended: its disk or GPU hangs, and no client waits for that.

        Its domain is in FAULT then, also where the daemon is in the middle of its exit: upkeep kills it again.
        """
        if not await domain.control.kill():
            if domain.state is DomainState.RECYCLING:
                domain.state = DomainState.FAULT
                self._pool.notify()
            raise VendorFailed("its vendor daemon was killed, and has not ended")

    async def _close_off(self, domain: Domain) -> None:
        """Quit the vendor daemon; its task starts one that other users do not reach, if that is possible now."""
        if domain.occupancy:
            return  # a client came in the meantime
        log.info("domain.recycling", domain=domain.name, was="exposed")
        domain.state = DomainState.RECYCLING
        self._pool.notify()
        if not await domain.control.quit(self._stop_seconds):
            log.error("domain.kill", domain=domain.name, why="its vendor daemon did not quit")
            await self._kill(domain)

    async def _restart(self, domain: Domain) -> None:
        """Kill the vendor daemon: its clients have lost their contexts already.  Its task starts it again."""
        is_deserted = domain.name in self._deserted_since
        why = "its clients have ended and it stays in FAULT" if is_deserted else "clients of before its fault do not end"
        log.warning("domain.kill", domain=domain.name, why=why, clients=domain.occupancy)
        await self._kill(domain)

    async def _end_contained(self, domain: Domain) -> None:
        """End what is left of a domain with a contained exception: its server does not serve clients any more."""
        left = [pid for pid in sorted(domain.client_pids) if may_live(domain.admitted, pid)]
        why = "sentinel.drain_seconds are over" if left else "its clients have ended after a contained exception"
        log.warning("domain.kill", domain=domain.name, why=why, clients=len(left))
        if domain.number > 1:
            domain.state = DomainState.STOPPING
        await self._kill(domain)
        if domain.state is DomainState.CONTAINED:
            domain.state = DomainState.DEAD  # else it would be ended again before its task notices

    async def recycle(self, domain: Domain) -> None:
        """Replace its servers by fresh ones; it takes no clients in the meantime.

        If that fails, its vendor daemon is killed, and its task starts it again: it must not stay half recycled, since clients
        wait for it.
        """
        log.info("domain.recycling", domain=domain.name, was=domain.state.value)
        domain.state = DomainState.RECYCLING
        self._pool.notify()
        try:
            why = "" if await self._renew(domain) else "its servers did not shut down"
        except MpsdError as exc:
            why = str(exc)
        if why and domain.state is DomainState.RECYCLING:
            log.error("domain.kill", domain=domain.name, why=why)
            await self._kill(domain)

    async def _renew(self, domain: Domain) -> bool:
        """Return whether the servers ended; then the next ones are as those of a new domain.  Raise MpsdError."""
        if not await self._empty(domain):
            return False
        domain.contexts.clear()
        domain.failures.clear()
        domain.channels.clear()
        domain.unseen.forget()
        self._pool.store.forget_members(domain.name)
        domain.guard.forget()
        domain.is_public, domain.key = False, ""
        self._pool.store.forget_baselines(domain.name)
        self._pool.store.save_domain(domain.name, domain.number, domain.gpus, False)
        self._pool.begin_guarding(domain)
        await domain.apply_defaults(self._pool.defaults)
        if domain.state is DomainState.RECYCLING:
            domain.state = DomainState.READY
        return True

    async def _finish_draining(self, domain: Domain) -> None:
        """Retire the domain; the first one stays, with fresh servers: the next client goes there."""
        if domain.number > 1:
            await self.retire(domain)
        else:
            await self.recycle(domain)
        domain.is_draining = domain.is_worn = False

    async def _empty(self, domain: Domain) -> bool:
        for pid in list(domain.servers):
            await domain.control.command(f"shutdown_server {pid} -f")
        with trio.move_on_after(self._stop_seconds):
            while domain.servers:
                domain.mark_stale()
                await domain.refresh()
                await trio.sleep(_POLL_SECONDS)
        return not domain.servers

    async def retire(self, domain: Domain) -> None:
        """Retire a domain for good.  Its task removes it when its vendor daemon has ended."""
        if domain.occupancy:
            return  # a client came in the meantime
        domain.state = DomainState.STOPPING
        self._pool.notify()
        if not await domain.control.quit(self._stop_seconds):
            log.error("domain.kill", domain=domain.name, why="its vendor daemon did not quit")
            await self._kill(domain)
