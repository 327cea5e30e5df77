"""Clients that a vendor server lists and that mpsd did not admit: found, reported, and ended as configured.

Where vendor daemons are private (domains/directories.py), no client can connect to one without the relay.  This covers domains
where that is impossible, and ways in that are not known.  Prose: docs/domains.md, "Private directories".
"""

from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.terminate_client import terminate_client
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_SURE_SECONDS = 1.0  # listed for so long, in two answers
_AGAIN_SECONDS = 10.0  # until the work of a stranger that is still listed is ended again


class Stranger(Struct):
    """A process in a domain's list.  since: its first listing; ended_at: when its work was last ended (trio times).

    process: None as long as it cannot be read, as while a user holds its /proc: then it is reported only.
    """

    since: float
    process: ProcessId | None = None
    is_told: bool = False
    ended_at: float | None = None


class Strangers(Struct):
    """Guards that one answer alone makes no process a stranger, and that each is reported once.

    is_ended: whether mpsd ends the GPU work of strangers in this domain.
    """

    pool: Pool
    is_ended: Callable[[Domain], bool]
    publish: Callable[[str, Mapping[str, Any]], None]
    _known: dict[tuple[str, int], Stranger] = field(default_factory=dict)

    async def run(self) -> None:
        """Run as long as mpsd."""
        busy: set[str] = set()
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(_SURE_SECONDS if self._known else float("inf")):
                    await self.pool.changed()
                for domain in self.pool.domains.values():
                    if domain.state is DomainState.READY and domain.name not in busy:
                        busy.add(domain.name)
                        nursery.start_soon(self._look_apart, domain, busy)
                for name, pid in list(self._known):
                    if name not in self.pool.domains or not processes.lives(pid):
                        del self._known[name, pid]

    async def _look_apart(self, domain: Domain, busy: set[str]) -> None:
        """Look at a domain while others are looked at too: its daemon may not answer."""
        try:
            await self.look(domain)
        finally:
            busy.discard(domain.name)

    async def look(self, domain: Domain) -> None:
        """Handle the strangers that the domain lists now; mpsd acts only on a second answer, some time after the first."""
        now = trio.current_time()
        listed = {pid for pid in domain.strangers if processes.lives(pid)}
        for pid in [pid for name, pid in self._known if name == domain.name and pid not in listed]:
            del self._known[domain.name, pid]
        for pid in listed:
            stranger = self._meet(domain, pid, now)
            if domain.asked_at < stranger.since + _SURE_SECONDS:
                domain.mark_stale()
                continue
            if not stranger.is_told:
                stranger.is_told = True
                self._tell(domain, pid)
            is_due = stranger.ended_at is None or now - stranger.ended_at > _AGAIN_SECONDS
            if stranger.process is not None and self.is_ended(domain) and is_due:
                stranger.ended_at = now
                await self._end(domain, stranger.process)

    def _meet(self, domain: Domain, pid: int, now: float) -> Stranger:
        """Return what is known of the process; begin anew if another one has the pid now."""
        process, known = processes.find(pid), self._known.get((domain.name, pid))
        if known is None or (process is not None and known.process not in (None, process)):
            known = self._known[domain.name, pid] = Stranger(now)
        known.process = process or known.process
        return known

    def _tell(self, domain: Domain, pid: int) -> None:
        owner = processes.owner(pid)
        facts = {"pid": pid, "uid": owner[0] if owner else None, "domain": domain.name}
        log.error("client.stranger", **facts, program=processes.command(pid), is_exposed=domain.is_exposed)
        self.publish("client.stranger", facts)

    async def _end(self, domain: Domain, process: ProcessId) -> None:
        """End its GPU work.  It gets no signal: only the vendor's list calls it a client."""
        server = next((each for each in domain.servers.values() if process.pid in each.client_pids), None)
        if server is None or not processes.is_alive(process):
            return
        try:
            await terminate_client(domain, server.pid, process.pid)
        except VendorFailed as exc:
            log.error("client.not_terminated", pid=process.pid, domain=domain.name, why=str(exc))
