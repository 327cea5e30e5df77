"""Build the fault sources, the incidents and the reactions; subscriptions.py connects them."""

import time
from functools import partial
from pathlib import Path

from mpsd.api.event_bus import EventBus
from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.config import paths as places
from mpsd.domains.pool import Pool
from mpsd.faults.incidents import Incidents
from mpsd.faults.lifecycle import Faults
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
from mpsd.leases.lease_book import LeaseBook
from mpsd.model import cgroup_path
from mpsd.model.fault import Party
from mpsd.model.process import ProcessId
from mpsd.notify import Outbox
from mpsd.stop.stopper import Stopper
from mpsd.uvm.attachments import Attachments
from mpsd.uvm.device import Devices
from mpsd.uvm.holding import OpenSpaces
from mpsd.uvm.simulator import SimulatedDevices


def build_attachments(found: Startup) -> Attachments:
    return Attachments(settings.uvm(found.config, found.budget), _open_spaces(found), found.inspector, ranges=found.ranges)


def build_faults(
    found: Startup,
    pool: Pool,
    book: LeaseBook,
    stopper: Stopper,
    attachments: Attachments,
    events: EventBus,
    facts: ClientFacts,
) -> Faults:
    config, outbox = found.config, Outbox()
    since = time.monotonic_ns() if found.store.domains() else None
    describe = partial(_describe, book, pool, facts)
    asked = settings.faults(config)
    incidents = Incidents(
        pool, found.fault_store, asked, describe, events.publish, attachments.guard, outbox, watches_since=since
    )
    reactions = Reactions(incidents, pool, stopper, events.publish, attachments.release, attachments.holds)
    policy = KmodPolicy(pool, settings.kmod_mode(config))
    path, interval = settings.kernel_log(config, found.environ), config.faults.kernel_log_seconds
    kernel_log = KernelLog(path, incidents.domain_of_pid, events.publish, found.devices, interval)
    parties, core_dumps = incidents.parties, None
    if config.faults.core_dumps == "on":
        cores = found.claim.pipe_directory / CORES
        core_dumps = CoreDumps(cores, parties.of_user, share_of=found.ranges.share_of)
    sources = _build_sources(found, attachments, kernel_log, core_dumps, policy)
    return Faults(incidents, outbox, sources, kernel_log, core_dumps, reactions, attachments, policy)


def _describe(book: LeaseBook, pool: Pool, facts: ClientFacts, process: ProcessId) -> Party:
    """Return a client's facts for people; call it while the client lives."""
    identity, grant = book.identity_of(process), book.grant_of(process)
    uid = book.uid_of(process)
    if uid is None:
        uid = next((domain.uids[process] for domain in pool.domains.values() if process in domain.uids), None)
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
    found: Startup, attachments: Attachments, kernel_log: KernelLog, core_dumps: CoreDumps | None, policy: KmodPolicy
) -> Sources:
    config = found.config
    by_name: dict[str, SourceOfFaults] = {"uvm_events": UvmEvents(attachments), "kernel_log": kernel_log}
    nvml = NvmlEvents([device.uuid for device in found.devices], places.nvml_library(config))
    if config.faults.nvml_events == "on":
        by_name["nvml"] = nvml
    if core_dumps:
        by_name["core_dump"] = core_dumps
    if config.faults.kmod:
        by_name |= {"kmod": Kmod(Path(config.faults.kmod), policy), "kmod_policy": policy}
    return Sources(by_name, nvml.lost)
