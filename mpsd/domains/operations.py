"""Operators' actions on fault domains and on the placement of clients, over the pool."""

from collections.abc import Callable, Iterator, Sequence

from mpsd.domains.domain import Domain
from mpsd.domains.listed import listed_process
from mpsd.domains.placement_waits import PlacementWait
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import room
from mpsd.domains.upkeep import Upkeep
from mpsd.errors import BadRequest, NoSuchDomain, TooMany
from mpsd.host import processes
from mpsd.model.client import ClientView, ShieldState, WatchStatus
from mpsd.model.domain import DomainState, DomainView, ServerView
from mpsd.model.process import ProcessId

_SHIELDED = (ShieldState.ON, ShieldState.KEPT)


class DomainOperations:
    """Guards that only methods that change a vendor daemon wait for it."""

    def __init__(
        self,
        pool: Pool,
        upkeep: Upkeep,
        wish: Callable[[ProcessId, int | None, str], None] | None,
        standing: Callable[[ProcessId], WatchStatus],
        uid_of: Callable[[ProcessId], int | None],
    ) -> None:
        """wish: sets the domain of a client's next start; None: unprivileged, where clients are not placed one by one.

        uid_of: the user of a client that admission knows; None for others.
        """
        self._pool = pool
        self._upkeep = upkeep
        self._standing = standing
        self._uid_of = uid_of
        self._wish = wish

    def views(self) -> Sequence[DomainView]:
        return self._pool.views()

    def servers(self, domain: str) -> Sequence[ServerView]:
        return list(self._find(domain).servers.values())

    def clients(self, pid: int | None = None) -> Sequence[ClientView]:
        """Those that were placed, and those that only the vendor's servers know, as without root; only those with `pid`, if
        it is given.  Nothing is read from /proc for a client that admission knows: there may be thousands."""
        return [view for domain in self._pool.domains.values() for view in self._clients_of(domain, pid)]

    def _clients_of(self, domain: Domain, only: int | None) -> Iterator[ClientView]:
        known = {pid: server.pid for server in domain.servers.values() for pid in server.client_pids}
        servers = {pid: server for pid, server in known.items() if only in (None, pid)}
        members = [process for process in domain.members if only in (None, process.pid)]
        strangers = servers.keys() - {process.pid for process in members}
        others = [process for pid in strangers if (process := listed_process(domain.admitted, pid))]
        for process in (*members, *others):
            yield self._view(process, domain.name, servers.get(process.pid))

    def waiting(self) -> Sequence[PlacementWait]:
        """Return the clients that were admitted and wait for a domain, by their time of arrival."""
        return self._pool.waits.listed()

    def _view(self, process: ProcessId, domain: str, server_pid: int | None) -> ClientView:
        now = self._standing(process)
        return ClientView(process, self._uid(process), domain, server_pid, now.watched, now.shield in _SHIELDED, now.held)

    def _uid(self, process: ProcessId) -> int | None:
        known = self._uid_of(process)
        return _uid_now(process) if known is None else known

    async def create(self, gpus: tuple[str, ...]) -> str:
        """Start a domain of these GPUs and return its name.  Raises TooMany."""
        rules = self._pool.rules(frozenset(gpus))
        most = 1 if rules.is_exclusive else rules.max_domains
        if room(frozenset(gpus), self._pool.views(), rules) <= 0:
            raise TooMany(f"one of these GPUs has {most} domains, and may not have more (domains.max_domains)")
        return self._pool.create(tuple(uuid for uuid in self._pool.gpus if uuid in gpus)).name

    async def drain(self, name: str) -> None:
        """Stop admitting clients to the domain; remove it when its last client has ended."""
        self._find(name).is_draining = True
        self._pool.notify()

    async def recycle(self, name: str) -> None:
        """Replace the servers by new ones; called only while the domain has no clients."""
        domain = self._find(name)
        if domain.state is not DomainState.READY or domain.occupancy:
            raise BadRequest(f"domain {name} is {domain.state.value} with {domain.occupancy} clients, not ready and empty")
        await self._upkeep.recycle(domain)
        self._pool.notify()

    async def move(self, process: ProcessId, domain: str) -> None:
        """Set the domain of this client's next start.  The running process is not affected."""
        if self._wish is None:
            raise BadRequest("without root mpsd does not place clients one by one")
        self._find(domain)
        self._wish(process, _uid_now(process), domain)

    def _find(self, name: str) -> Domain:
        try:
            return self._pool.domains[name]
        except KeyError:
            known = ", ".join(sorted(self._pool.domains))
            raise NoSuchDomain(f"no domain has the name {name!r}; known: {known}") from None


def _uid_now(process: ProcessId) -> int | None:
    found = processes.owner(process.pid)
    return found[0] if found else None
