"""Build the services; subscriptions.py connects them."""

import os
from collections.abc import Awaitable, Callable

import trio

from mpsd.api.event_bus import EventBus
from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import PlacementRequest
from mpsd.errors import NoSuchClient, NotAllowed, VendorFailed
from mpsd.faults.incidents import SUSPECT_SECONDS
from mpsd.host.ownership import ANOTHERS, is_anothers, on_account_of
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.model.stop import Manner, Target, TargetKind
from mpsd.notify import Outbox
from mpsd.services.coordinator import Coordinator
from mpsd.services.enlistment import Enlistment, FindPlace, Place
from mpsd.services.parts import ServiceParts
from mpsd.services.registry import ServiceRegistry
from mpsd.services.requests import ServiceRequests
from mpsd.services.server_watch import Servers
from mpsd.stop.stopper import Stopper
from mpsd.vault.lifecycle import Vault


def build_services(
    found: Startup, pool: Pool, vault: Vault, stopper: Stopper, outbox: Outbox, events: EventBus, registry: ServiceRegistry
) -> ServiceRequests:
    """Build the failover services.  Raises UnusablePath."""

    def fault_since(name: str) -> float | None:
        domain = pool.domains.get(name)
        return domain.fault_since if domain is not None and domain.state is DomainState.FAULT else None

    def is_contained(name: str) -> bool:
        domain = pool.domains.get(name)
        return domain is not None and domain.state is DomainState.CONTAINED

    def gpus_of(name: str) -> tuple[str, ...]:
        domain = pool.domains.get(name)
        return domain.gpus if domain is not None else ()

    def is_drained(gpu: str) -> bool:
        return gpu in pool.drained

    end = _ending(stopper, pool)
    facts = pool.name_of_domain, fault_since, is_contained, gpus_of
    parts = ServiceParts(*facts, end, events.publish, outbox, is_drained, ranges=found.ranges)
    coordinator = Coordinator(vault.arenas, parts, found.service_store, settings.failover(found.config), registry)
    find_place, placed_uids = (None, None) if found.is_privileged else (_finding(pool), pool.operators)
    enlistment = Enlistment(coordinator, found.service_store, find_place, found.ranges, placed_uids)
    return ServiceRequests(coordinator, enlistment, Servers(coordinator, pool), vault.arenas.ready)


def _ending(stopper: Stopper, pool: Pool) -> Callable[[ProcessId, int | None], Awaitable[object]]:
    async def end(process: ProcessId, uid: int | None) -> None:
        """End a process of this user, by the uid with which it connected; raises MpsdError if it still lives.

        A domain that may be about to fault is waited for: its vendor daemon hangs when it is asked to end a client then
        (measured).
        """
        with trio.move_on_after(SUSPECT_SECONDS + 1.0):
            while any(trio.current_time() < domain.suspect_until for domain in _domains_of(pool, process)):
                await pool.changed()
        target = Target(TargetKind.PID, str(process.pid), process.start_time)
        try:
            report = await stopper.stop(target, Manner(), on_account_of(uid))
        except NoSuchClient:
            if is_anothers(process, uid):
                raise NotAllowed(ANOTHERS) from None
            return  # it has already ended
        left = [each.why for each in report.stopped if not each.has_ended]
        if left:
            raise VendorFailed(left[0])

    return end


def _domains_of(pool: Pool, process: ProcessId) -> list[Domain]:
    found = pool.domain_of(process)
    return [] if found is None else [found]


def _finding(pool: Pool) -> FindPlace:
    """Return how to find a domain for a process that reaches it through the domain daemon's own directory."""
    gpus = frozenset(pool.gpus)

    async def find(avoid: frozenset[str]) -> Place:
        domain = await pool.place(PlacementRequest(os.geteuid(), gpus, avoid=avoid), None)
        return Place(domain.name, {"CUDA_MPS_PIPE_DIRECTORY": str(domain.control.pipe_directory)})

    return find
