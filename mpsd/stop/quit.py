"""End all clients and domains when mpsd quits (docs/ending.md).

A signal that ends a client during a long kernel kills its co-runners, so mpsd always ends a client's work by the documented
`terminate_client` first.  While mpsd quits, new clients are refused with an error (805) from a vendor daemon that may not start
servers, because it has a separate user.
"""

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.refuser import Refuser
from mpsd.domains.terminate_client import terminate_client
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.host.child_reaper import reap_all
from mpsd.host.process_exit import wait_ended
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_WAIT_SECONDS = 0.5  # between checks for remaining clients; changes in the pool cause further checks
_GONE_SECONDS = 2.0
_MOST_SILENCES = 3  # for which a domain's clients are ended: many on a busy GPU take long, and users can make them take long


class Shutdown(Struct):
    """Guards that quitting happens once, and that a later caller waits for the same end."""

    pool: Pool
    refuser: Refuser
    stop_seconds: float
    see_off: Callable[[], Awaitable[None]]  # closes the doors, and returns when all clients at them have been answered
    status: int | None = None
    _is_quitting: bool = False
    _deadline: float = math.inf
    _done: trio.Event = field(default_factory=trio.Event)

    @property
    def ends_at(self) -> float | None:
        """When mpsd ends the work of the remaining clients, seconds since the epoch.

        None: mpsd waits for ever, or is not quitting.
        """
        left = self._deadline - trio.current_time()
        return None if left == math.inf else time.time() + left

    async def quit_all(self, timeout_seconds: float | None) -> int:
        """Refuse new clients, wait for the others (`timeout_seconds`; None: for ever), then end everything.

        The status is 0 if every vendor daemon quit by itself.  A second call can only shorten the wait.
        """
        if timeout_seconds is not None:
            self._deadline = min(self._deadline, trio.current_time() + timeout_seconds)
            self.pool.notify()
        if not self._is_quitting:
            self._is_quitting = True
            try:
                with trio.CancelScope(shield=True):  # bounded by _deadline, unless the caller asked to wait for ever
                    self.status = await self._quit()
            except BaseException:
                self.status = 1
                raise
            finally:
                self._done.set()
        await self._done.wait()
        return self.status or 0

    async def _quit(self) -> int:
        log.info("quit.begins", clients=self._client_count())
        self.pool.stopping.set()
        self.pool.notify()
        await self.refuser.open()
        await self._wait_for_clients()
        self._deadline = min(self._deadline, trio.current_time())  # from here on it waits for no client
        failures: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pool.outlived.end_all)
            for domain in list(self.pool.domains.values()):
                nursery.start_soon(self._end_domain, domain, failures)
        await self.see_off()
        await self.refuser.close(self.stop_seconds)
        reap_all()  # after `quit`, not even zombies of vendor daemons are left
        log.info("quit.done", failures=failures)
        return 1 if failures else 0

    def _client_count(self) -> int:
        return sum(len(domain.client_pids) for domain in self.pool.domains.values())

    async def _wait_for_clients(self) -> None:
        while trio.current_time() < self._deadline:
            async with trio.open_nursery() as nursery:  # a domain that hangs delays no other
                for domain in self.pool.domains.values():
                    domain.mark_stale()  # a client that connected a moment ago may not be known yet
                    nursery.start_soon(self._look, domain)
            if not self._client_count() and not self.pool.outlived.with_clients:
                return
            with trio.move_on_after(min(_WAIT_SECONDS, max(0.0, self._deadline - trio.current_time()))):
                await self.pool.changed()

    async def _look(self, domain: Domain) -> None:
        """Ask the domain's servers for their clients; others' commands may come first, so this takes no longer than they may.

        If an exception is contained there, they answer no more.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._limit, domain, nursery.cancel_scope)
            try:
                await domain.refresh()
            except VendorFailed as exc:
                log.warning("domain.silent", domain=domain.name, why=str(exc))
            nursery.cancel_scope.cancel()

    async def _limit(self, domain: Domain, asking: trio.CancelScope) -> None:
        silent_at = trio.current_time() + domain.control.silence_seconds
        while domain.state is not DomainState.CONTAINED:
            asking.deadline = max(self._deadline, silent_at)
            await self.pool.changed()
        asking.cancel()

    async def _end_domain(self, domain: Domain, failures: list[str]) -> None:
        """End a domain; kill it after an error in here, so that all others end as they would."""
        domain.mark_stale()
        try:
            await self._look(domain)  # a client unknown to mpsd would be killed without having been terminated
            async with domain.sentinel.aside():
                await self._end_clients_and_daemon(domain, failures)
        except Exception:
            log.exception("domain.kill", domain=domain.name, why="a bug in mpsd: it could not be ended")
            failures.append(domain.name)
            with suppress(Exception):
                await domain.control.kill()

    async def _end_clients_and_daemon(self, domain: Domain, failures: list[str]) -> None:
        if domain.state is not DomainState.CONTAINED:
            await self._end_work(domain)
        servers = [process for pid in domain.servers if (process := processes.find(pid))]
        domain.state = DomainState.STOPPING
        self.pool.notify()
        if not await domain.control.quit(self.stop_seconds):
            failures.append(domain.name)
            log.error("domain.kill", domain=domain.name, why="its vendor daemon did not quit")
            await domain.control.kill()
        for server_process in servers:
            await _see_gone(server_process)
        if swept := await domain.control.sweep():
            log.error("domain.swept", domain=domain.name, processes=swept)

    async def _end_work(self, domain: Domain) -> None:
        """End the GPU work of its clients; give up when none was ended for as long as a busy domain may leave all unanswered.

        And in any case after some time: a user can stop a server of theirs, or hold the cgroups of their clients, and have so
        many that quitting would take minutes.
        """
        until = trio.current_time() + _MOST_SILENCES * domain.control.silence_seconds

        async def terminate(server_pid: int, client_pid: int) -> None:
            if await self._terminate(domain, server_pid, client_pid):
                ending.deadline = min(until, trio.current_time() + domain.control.silence_seconds)

        with trio.move_on_after(domain.control.silence_seconds) as ending:
            async with trio.open_nursery() as nursery:  # the command for one waits for no look at another
                for server in domain.servers.values():
                    for client in server.client_pids:
                        nursery.start_soon(terminate, server.pid, client)
        if ending.cancelled_caught:
            log.error("domain.silent", domain=domain.name, why="it did not end the GPU work of all clients in time")

    async def _terminate(self, domain: Domain, server_pid: int, client_pid: int) -> bool:
        """End the client's GPU work and return whether that worked; its process sees error 810 and lives on."""
        try:
            await terminate_client(domain, server_pid, client_pid)
        except VendorFailed as exc:
            log.error("client.not_terminated", pid=client_pid, domain=domain.name, why=str(exc))
            return False
        return True


async def _see_gone(process: ProcessId) -> None:
    """Wait for the end of a vendor server: it outlives its control daemon by moments, and is killed if by more."""
    with trio.move_on_after(_GONE_SECONDS):
        await wait_ended(process)
        return
    log.error("server.kill", pid=process.pid, why="it outlived its control daemon")
    with suppress(OSError):
        processes.kill(process)
    with trio.move_on_after(_GONE_SECONDS):
        await wait_ended(process)
