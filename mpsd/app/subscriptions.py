"""The table of subscriptions: which part of the daemon is told of what, and in which order.

A signal calls its subscribers in the order in which they stand here.  A fault goes through the table from top to bottom: a
source sees it, the coordinator of services promotes a standby, and then the incident is judged, which starts the reactions.
"""

from collections.abc import Callable
from functools import partial

from mpsd.domains.domain import Domain
from mpsd.domains.newcomers import ROOM_FOR_A_CONTEXT_BYTES, Newcomers
from mpsd.domains.pool import Pool
from mpsd.faults.known_clients import KnownClients
from mpsd.faults.lifecycle import Faults
from mpsd.host import processes
from mpsd.host.client_facts import ClientFacts
from mpsd.host.process_exit import ProcessExit
from mpsd.leases.lease_book import LeaseBook
from mpsd.model.domain import DomainState
from mpsd.model.process import Credentials, ProcessId
from mpsd.sentinel.sentinels import Sentinels
from mpsd.services.requests import ServiceRequests
from mpsd.uvm.attachments import Attachments
from mpsd.vault.lifecycle import Vault


def subscribe(
    pool: Pool,
    book: LeaseBook,
    facts: ClientFacts,
    faults: Faults,
    vault: Vault,
    services: ServiceRequests,
    sentinels: Sentinels | None,
) -> None:
    incidents, attachments, coordinator = faults.incidents, faults.attachments, services.coordinator
    # clients
    pool.client_adopted.subscribe(partial(_adopt, book), incidents.arrived)
    incidents.client_arrived.subscribe(partial(_watch, attachments, book, partial(_has_company, pool, incidents.parties)))
    pool.member_forgotten.subscribe(incidents.forgotten, services.servers.forgotten)
    if faults.core_dumps:
        incidents.client_arrived.subscribe(faults.core_dumps.note_arrival)
    incidents.client_hung_up.subscribe(attachments.note_leaving)
    attachments.client_ended.subscribe(partial(_note_end, Newcomers(pool), faults))
    pool.client_ended.subscribe(incidents.left, partial(_leave, book, facts))
    pool.retained.is_held, pool.retained.until_released = attachments.is_watching, attachments.wait_over
    pool.retained.freed.subscribe(book.leave)
    # a fault, from its sources to the promotion of a standby and to the reactions
    pool.log_told.subscribe(faults.kmod_policy.hear, incidents.hear)
    attachments.observed.subscribe(incidents.see)
    faults.sources.observed.subscribe(sentinels.pass_on if sentinels else incidents.see)
    if sentinels:
        sentinels.is_told = incidents.knows
        sentinels.observed.subscribe(incidents.see)
        incidents.observed.subscribe(sentinels.give_way)
    incidents.observed.subscribe(coordinator.see)
    coordinator.fence_wanted.subscribe(services.fencing.fence)
    incidents.revised.subscribe(faults.reactions.consider)
    # services
    coordinator.protected.subscribe(faults.kernel_log.hurry)
    coordinator.process_ended.subscribe(services.enlistment.forget)
    coordinator.events.moved.subscribe(incidents.note_of_gpu)
    vault.arenas.changed.subscribe(coordinator.heard_of)


def _adopt(book: LeaseBook, process: ProcessId, domain: Domain) -> None:
    """Count the client against the user who connected: it may run another user's program by now."""
    if (owner := processes.owner(process.pid)) is not None:
        book.adopt(process, Credentials(process.pid, domain.uids.get(process, owner[0]), owner[1]))


def _watch(
    attachments: Attachments,
    book: LeaseBook,
    has_company: Callable[[ProcessId, str], bool],
    process: ProcessId,
    domain: Domain,
    is_new: bool,
    is_again: bool,
) -> None:
    grant = book.grant_of(process)
    is_roomy = grant is None or all(size >= ROOM_FOR_A_CONTEXT_BYTES for size in grant.memory_bytes.values())
    company, uid = partial(has_company, process, domain.name), book.uid_of(process)
    has_channel = process in domain.channels  # of an earlier connection, or an earlier mpsd
    attachments.watch(process, domain.name, domain.gpus, company, is_roomy, uid, has_channel, is_again)


def _has_company(pool: Pool, parties: KnownClients, process: ProcessId, arrived_in: str) -> bool:
    """Return whether the end of the process, which may have happened, could harm a client of its domain.

    arrived_in: the domain, where the process ended so long ago that it is not known any more (uvm.hold_seconds).
    """
    domain = pool.domains.get(arrived_in if parties.find(process) is None else parties.domain_of(process))
    return domain is not None and domain.state is not DomainState.FAULT and bool(domain.present_pids - {process.pid})


def _note_end(newcomers: Newcomers, faults: Faults, process: ProcessId, domain: str, had_context: bool) -> None:
    party = faults.incidents.parties.find(process)
    uid, _, container = party.owner if party else (None, "", "")
    newcomers.note_end(domain, had_context, uid, container)


def _leave(book: LeaseBook, facts: ClientFacts, process: ProcessId, ending: ProcessExit | None) -> None:
    book.leave(process)
    facts.forget(process)
