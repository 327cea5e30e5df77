"""The one place that builds the fault sources and reactions, and connects them with the pool and the leases."""

import time
from functools import partial
from pathlib import Path

from mpsd.api.event_bus import EventBus
from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.config import paths as places
from mpsd.domains.domain import Domain
from mpsd.domains.newcomers import ROOM_FOR_A_CONTEXT_BYTES, Newcomers
from mpsd.domains.pool import Pool
from mpsd.domains.rules.log_lines import News
from mpsd.faults.incidents import Incidents
from mpsd.faults.lifecycle import Faults
from mpsd.faults.low_latency import LatencyNeed
from mpsd.faults.reactions import Reactions
from mpsd.faults.sources.core_dump_directory import CORES
from mpsd.faults.sources.core_dumps import CoreDumps
from mpsd.faults.sources.kernel_log import KernelLog
from mpsd.faults.sources.kmod import Kmod
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.nvml_events import NvmlEvents
from mpsd.faults.sources.runner import SourceOfFaults, Sources
from mpsd.faults.sources.uvm_events import UvmEvents
from mpsd.host import cgroups, processes
from mpsd.host.client_facts import ClientFacts
from mpsd.host.process_exit import ProcessExit as ProcessEnding
from mpsd.leases.lease_book import LeaseBook
from mpsd.model import cgroup_path
from mpsd.model.domain import DomainState
from mpsd.model.fault import Party
from mpsd.model.process import Credentials, ProcessId
from mpsd.stop.stopper import Stopper
from mpsd.uvm.attachments import Attachments
from mpsd.uvm.device import Devices
from mpsd.uvm.holding import OpenSpaces
from mpsd.uvm.simulator import SimulatedDevices


def join_faults(
    found: Startup, pool: Pool, book: LeaseBook, stopper: Stopper, events: EventBus, facts: ClientFacts
) -> Faults:
    config = found.config
    since = time.monotonic_ns() if found.store.domains() else None
    describe = partial(_describe, book, facts)
    desk = Incidents(pool, found.fault_store, settings.faults(config), describe, events.publish, watches_since=since)
    newcomers = Newcomers(pool)
    uvm = settings.uvm(config, found.budget)

    def ended(process: ProcessId, domain: str, had_context: bool) -> None:
        party = desk.parties.find(process)
        newcomers.note_end(domain, had_context, party.uid if party else None)

    attachments = Attachments(uvm, _open_spaces(found), found.inspector, desk.see, ended, ranges=found.ranges)
    policy = KmodPolicy(pool, settings.kmod_mode(config))
    _introduce(pool, book, desk, attachments, policy, facts)
    stopper.release = attachments.release
    reactions = Reactions(desk, pool, stopper, events.publish, attachments.release, attachments.holds)
    desk.on_incident.append(reactions.consider)
    haste = LatencyNeed()
    sources = _build_sources(found, desk, attachments, events, policy, haste)
    return Faults(desk, sources, reactions, attachments, policy, haste)


def _introduce(
    pool: Pool, book: LeaseBook, desk: Incidents, attachments: Attachments, policy: KmodPolicy, facts: ClientFacts
) -> None:
    """Connect the callbacks: for clients that come and go, and for lines of the domains' logs."""

    def arrived(process: ProcessId, domain: Domain, is_new: bool) -> None:
        grant = book.grant_of(process)
        is_roomy = grant is None or all(size >= ROOM_FOR_A_CONTEXT_BYTES for size in grant.memory_bytes.values())
        attachments.watch(process, domain.name, domain.gpus, partial(_has_company, domain, process), is_roomy)

    def adopted(process: ProcessId, domain: Domain) -> None:
        _adopt(book, process)
        desk.arrived(process, domain)

    def gone(process: ProcessId, ending: ProcessEnding | None) -> None:
        desk.left(process, ending)
        book.leave(process)
        facts.forget(process)

    def heard(domain: Domain, news: News) -> None:
        policy.hear(domain, news)
        desk.hear(domain, news)

    desk.on_arrival.append(arrived)
    desk.on_hang_up.append(attachments.note_leaving)
    desk.on_guard = attachments.guard
    pool.on_adopted, pool.on_gone, pool.on_news = adopted, gone, heard


def _has_company(domain: Domain, process: ProcessId) -> bool:
    """Return whether the client's end could harm another client."""
    others = {*domain.members, *domain.connected} - {process}
    return domain.state is not DomainState.FAULT and (bool(others) or len(domain.client_pids - {process.pid}) > 0)


def _describe(book: LeaseBook, facts: ClientFacts, process: ProcessId) -> Party:
    """Return a client's facts for people; call it while the client lives."""
    identity, grant = book.identity_of(process), book.grant_of(process)
    uid = book.uid_of(process)
    if uid is None and (owner := processes.owner(process.pid)) is not None:
        uid = owner[0]
    paths = identity.cgroups if identity else cgroups.paths(process.pid)
    program = facts.program_of(process)
    lasting = cgroup_path.lasting_name(paths, facts.job_name_of(process), program)
    return Party(process, uid, program, cgroup_path.describe(paths), grant.lease_id if grant else None, lasting)


def _open_spaces(found: Startup) -> OpenSpaces:
    if found.config.backend == "sim":
        return SimulatedDevices(settings.simulated_machine(found.environ), found.inspector).open_spaces
    return Devices(found.inspector).open_spaces


def _build_sources(
    found: Startup, desk: Incidents, attachments: Attachments, events: EventBus, policy: KmodPolicy, haste: LatencyNeed
) -> Sources:
    config = found.config
    library = places.nvml_library(config)
    kernel_log, interval = settings.kernel_log(config, found.environ), config.faults.kernel_log_seconds
    by_name: dict[str, SourceOfFaults] = {
        "uvm_events": UvmEvents(attachments),
        "kernel_log": KernelLog(kernel_log, desk.domain_of_pid, events.publish, found.devices, haste, interval),
    }
    nvml = NvmlEvents([device.uuid for device in found.devices], library)
    if config.faults.nvml_events == "on":
        by_name["nvml"] = nvml
    if config.faults.core_dumps == "on":
        dumps = CoreDumps(found.claim.pipe_directory / CORES, desk.parties.of_user, desk.parties.lived)
        desk.on_arrival.append(lambda process, domain, is_new: dumps.meet(process) if is_new else None)
        by_name["core_dump"] = dumps
    if config.faults.kmod:
        by_name |= {"kmod": Kmod(Path(config.faults.kmod), policy), "kmod_policy": policy}
    return Sources(by_name, nvml.lost)


def _adopt(book: LeaseBook, process: ProcessId) -> None:
    if (owner := processes.owner(process.pid)) is not None:
        book.adopt(process, Credentials(process.pid, *owner))
