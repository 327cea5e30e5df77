"""The sentinels of all domains: before a domain's first client they are started, and started again when they end early."""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.errors import VendorFailed
from mpsd.sentinel.messages import SentinelReport
from mpsd.sentinel.protection import Protection, SentinelSettings
from mpsd.sentinel.watcher import Watcher

log = structlog.get_logger()


class Sentinels(Struct):
    """Guards that each domain has one protection from its creation on."""

    pool: Pool
    settings: SentinelSettings
    _protections: dict[str, Protection] = field(default_factory=dict)
    _nursery: trio.Nursery | None = None

    def protect(self, domain: Domain) -> Protection:
        """Return the sentinels of a new domain: none runs yet."""
        made = Protection(domain, self.pool, self.settings, self._spawn, self._hear)
        self._protections[domain.name] = made
        return made

    async def prepare(self, domain: Domain, uid: int) -> None:
        """Return when a client of this user may connect to the domain.  Raise VendorFailed if it may not, for now."""
        protection = self._protections.get(domain.name)
        if protection is None or not self.settings.is_on or protection.serves(uid):
            return
        if protection.may_start:
            ready = trio.Event()
            self._spawn(partial(_then, partial(protection.start, uid), ready))
            await ready.wait()  # a start ends within its seconds
        if self.settings.is_required and not protection.serves(uid):
            raise VendorFailed(f"domain {domain.name} has no sentinel: {protection.why_not}")

    @property
    def pids(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.own_pids for each in self._protections.values()))

    def problems(self) -> list[str]:
        """Return the domains with clients that lack the sentinel that they should have."""
        if not self.settings.is_on:
            return []
        return [
            f"domain {each.domain.name} has no sentinel, so that an SM exception there ends all its clients: {each.why_not}"
            for each in self._protections.values()
            if each.why_not and each.domain.occupancy and not each.is_ready
        ]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run as long as mpsd; start it before the pool."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                for name in self._protections.keys() - self.pool.domains.keys():
                    del self._protections[name]
                for protection in list(self._protections.values()):
                    await self._look(protection)
                await self.pool.changed()

    async def _look(self, protection: Protection) -> None:
        domain = protection.domain
        if not self.settings.is_on and protection.watchers:
            self._spawn(protection.end)  # sentinels were on in an earlier mpsd
            return
        protection.find_server()
        await protection.name_clients()
        if protection.server and domain.client_pids and not protection.is_ready and protection.may_start:
            self._spawn(partial(protection.start, protection.server.uid))

    def _hear(self, protection: Protection, watcher: Watcher, report: SentinelReport) -> None:
        log.debug("sentinel.report", domain=protection.domain.name, gpu=watcher.gpu, kind=report.kind.name, pid=report.pid)

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "sentinels are started in run()"
        self._nursery.start_soon(task)


async def _then(task: Callable[[], Awaitable[None]], done: trio.Event) -> None:
    try:
        await task()
    finally:
        done.set()
