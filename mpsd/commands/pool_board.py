"""The board of the vendor's commands (commands/language/board.py), over all fault domains at once."""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import PlacementRequest
from mpsd.domains.rules.vendor_limits import OF_ONE_SERVER, carry_out, of_defaults
from mpsd.domains.servers import make_way
from mpsd.domains.terminate_client import contained, terminate_client
from mpsd.errors import MpsdError, TooMany, VendorFailed
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, DomainState, ServerView

log = structlog.get_logger()
_PID = re.compile(r"\s*(\d+)[.\s]")  # of a row; get_device_client_list writes PID.CONTEXT
_PATIENCE_SECONDS = 1.0  # then the last known state is the answer: health probes give up after 3 s


class DaemonBoard:
    """Guards that a command that only reads is answered even while a vendor daemon hangs."""

    def __init__(self, pool: Pool, quit_all: Callable[[float | None], Awaitable[int]]) -> None:
        self._pool = pool
        self._quit = quit_all

    @property
    def devices(self) -> Sequence[Device]:
        return self._pool.devices

    def defaults(self) -> Defaults:
        return self._pool.defaults

    async def set_defaults(self, defaults: Defaults) -> None:
        await self._pool.set_defaults(defaults)

    async def servers(self) -> Sequence[ServerView]:
        """Return the servers of domains that have had clients: a spare's server does not count yet."""
        found: list[ServerView] = []
        public = [domain for domain in self._pool.domains.values() if domain.is_public]
        stale = [domain for domain in public if domain.news.is_set()]
        if stale:
            with trio.move_on_after(_PATIENCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for domain in stale:
                        nursery.start_soon(self._refresh, domain)
        for domain in sorted(public, key=lambda domain: domain.number):
            found.extend(domain.servers.values())
        return found

    async def _refresh(self, domain: Domain) -> None:
        try:
            await domain.refresh()
        except VendorFailed as exc:
            log.warning("domain.silent", domain=domain.name, why=str(exc))

    async def start_server(self, uid: int) -> str:
        """Start a server in the domain where this user's next client would go.

        If that domain has an idle server of another user, it is replaced.
        """
        domain: Domain | None = None
        seconds = self._pool.program.start_seconds
        with trio.move_on_after(seconds):
            domain = await self._pool.place(PlacementRequest(uid, frozenset(self._pool.gpus)), None)
        if domain is None:
            raise TooMany(f"no fault domain became free within {seconds:g} s to start a server for user {uid}")
        await make_way(domain, uid, is_multiuser=self._pool.settings.is_multiuser)
        return await self._tell(domain, f"start_server -uid {uid}", seconds)

    async def shutdown_server(self, pid: int, force: bool) -> str:
        domain = self._pool.domain_of_server(pid)
        try:
            if domain.state is not DomainState.CONTAINED:
                return await self._tell(domain, f"shutdown_server {pid}{' -f' if force else ''}")
        except VendorFailed:
            if domain.state is not DomainState.CONTAINED:  # it can be since
                raise
        if not force:
            raise VendorFailed(contained(domain))
        await domain.control.kill()  # its server carries out no command; its domain's task starts another
        return ""

    async def terminate_client(self, server_pid: int, client_pid: int, check: Callable[[], None] = lambda: None) -> str:
        domain = self._pool.domain_of_server(server_pid)
        try:
            return await terminate_client(domain, server_pid, client_pid, check)
        except MpsdError as exc:
            log.error("command.failed", domain=domain.name, line=f"terminate_client {server_pid} {client_pid}", why=str(exc))
            raise

    async def forward(self, server_pid: int | None, line: str) -> str:
        domain = self._pool.default_domain() if server_pid is None else self._pool.domain_of_server(server_pid)
        if domain.state is DomainState.CONTAINED:
            raise VendorFailed(contained(domain))
        if server_pid is not None and domain.guard.is_on and line.split()[0] in OF_ONE_SERVER:
            return self._about_baseline(domain, server_pid, line)
        return _without(domain.sentinel.pids, await domain.control.command(line))

    async def forward_each(self, lines: Sequence[tuple[int, str]]) -> Sequence[str | MpsdError]:
        """Domains that hang are waited for at the same time, and no longer than for one command: one user may have many."""
        seconds = self._pool.program.command_seconds
        found: list[str | MpsdError] = [VendorFailed(f"'{line}' was not answered in {seconds:g} s") for _, line in lines]

        async def ask(place: int, server_pid: int, line: str) -> None:
            try:
                found[place] = await self.forward(server_pid, line)
            except MpsdError as exc:
                found[place] = exc

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for place, (server_pid, line) in enumerate(lines):
                    nursery.start_soon(ask, place, server_pid, line)
        return found

    def _about_baseline(self, domain: Domain, server_pid: int, line: str) -> str:
        """Answer a command about a server's baseline limits.  Raises UnusablePath; then nothing has changed.

        The vendor's daemon is not asked: it has the limits of the next client (domains/limit_guard.py).  mpsd sends it what
        was set with the limits of each client that comes afterwards.
        """
        baselines = domain.guard.baselines
        before = baselines.get(server_pid, of_defaults(self._pool.defaults, domain.gpus))
        limits, answer = carry_out(line, before)
        if line.startswith("set_"):
            self._pool.store.save_baselines(domain.name, {**baselines, server_pid: limits})
            baselines[server_pid] = limits
        return answer

    async def quit(self, timeout_seconds: float | None) -> int:
        return await self._quit(timeout_seconds)

    async def _tell(self, domain: Domain, line: str, seconds: float | None = None) -> str:
        """Send a command that changes something; mpsd's view of the domain is stale afterwards."""
        try:
            return await domain.control.command(line, seconds)
        except MpsdError as exc:
            log.error("command.failed", domain=domain.name, line=line, why=str(exc))
            raise
        finally:
            domain.mark_stale()


def _without(pids: Collection[int], answer: str) -> str:
    """Return the answer without the rows of these processes, which begin with their pids."""
    kept = (line for line in answer.splitlines(keepends=True) if not (found := _PID.match(line)) or int(found[1]) not in pids)
    return "".join(kept) if pids else answer
