"""Build the daemon's objects and join them: the one place that does."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from mpsd.api.event_bus import EventBus
from mpsd.api.ports import Ports
from mpsd.api.server import Api
from mpsd.app import settings
from mpsd.app.daemon import Daemon
from mpsd.app.readiness import Notifier
from mpsd.app.startup import Startup
from mpsd.app.subscriptions import subscribe
from mpsd.app.wire_faults import build_attachments, build_faults
from mpsd.app.wire_sentinels import join_sentinels
from mpsd.app.wire_services import build_services
from mpsd.app.wire_vault import join_vault
from mpsd.commands.pool_board import DaemonBoard
from mpsd.commands.sessions import Sessions
from mpsd.config import paths
from mpsd.config.options import Config
from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import FrozenClients
from mpsd.domains.lifecycle import live
from mpsd.domains.operations import DomainOperations
from mpsd.domains.pool import Pool
from mpsd.domains.refuser import Refuser
from mpsd.domains.strangers import Strangers
from mpsd.domains.upkeep import Upkeep
from mpsd.domains.vital_signs import watch_vital_signs
from mpsd.errors import UnusablePath, VendorFailed
from mpsd.faults.incidents import Incidents
from mpsd.faults.lifecycle import Faults
from mpsd.health.collector import Health
from mpsd.health.state_directory import StateDirectory
from mpsd.host import cgroups, processes, programs
from mpsd.host.client_facts import ClientFacts
from mpsd.keeper.connections import KeeperClient
from mpsd.leases.lease_book import LeaseBook
from mpsd.leases.unenforced import UnenforcedBook
from mpsd.metrics.server import Metrics
from mpsd.metrics.source import Readings
from mpsd.model.device import Device
from mpsd.model.process import ProcessId
from mpsd.relay.assignment import Admission, Assignment
from mpsd.relay.conversation import Conversations
from mpsd.relay.offences import Offences
from mpsd.relay.progress import HandshakeProgress
from mpsd.relay.refusals import Refusals
from mpsd.relay.server import Relay
from mpsd.sentinel.sentinels import Sentinels
from mpsd.services.registry import ServiceRegistry
from mpsd.stop.freezer import LeftFrozen
from mpsd.stop.quit import Shutdown
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Targets
from mpsd.threads import run_in_thread
from mpsd.vault.lifecycle import Vault

_NVML_START_SECONDS = 80.0  # a driver that has to be loaded takes long; systemd waits 90 s and tells no reason
_NVML_SECONDS = 10.0  # while mpsd runs, and with it the driver: an answer takes a fraction of a second


def _build_pool(found: Startup, registry: ServiceRegistry) -> Pool:
    unified = cgroups.unified_hierarchy()
    vendor = settings.vendor(found.config, found.environ, found.inspector, unified, is_relayed=found.is_privileged)
    pool_settings = settings.pool(found.config, found.invocation, found.claim.state_directory)
    defaults = found.store.defaults() or settings.defaults(found.config, found.devices)
    return Pool(
        pool_settings, vendor, found.devices, defaults, found.store, found.public, live,
        services=registry, ranges=found.ranges,
    )  # fmt: skip


def _wish(relayed: tuple[Relay, KeeperClient] | None) -> Callable[[ProcessId, int | None, str], None] | None:
    return None if relayed is None else relayed[0].wish


def build(found: Startup) -> Daemon:
    config, claim = found.config, found.claim
    registry = ServiceRegistry(lambda name: vault.arenas.find(name))
    pool = _build_pool(found, registry)
    upkeep = Upkeep(pool, config.vendor.stop_seconds, partial(find_devices, config, _NVML_SECONDS, trio.CapacityLimiter(1)))
    events = EventBus()
    facts = ClientFacts(found.inspector)
    book = _open_book(found, pool, facts, events)
    sentinels = join_sentinels(found, pool)
    attachments = build_attachments(found)
    admitted, left = partial(_admitted, book), LeftFrozen(found.inspector, found.store)
    targets = Targets(pool, found.inspector, admitted, lambda: _needed(found, refuser, vault, relayed, sentinels), left)
    stopper = Stopper(pool, targets, attachments.release)
    faults = build_faults(found, pool, book, stopper, attachments, events, facts)
    vault = join_vault(found, lambda: pool.devices, book, attachments, events, registry.is_served)
    failover = build_services(found, pool, vault, stopper, faults.outbox, events, registry)
    subscribe(pool, book, facts, faults, vault, failover, sentinels)
    refuser = Refuser(pool.program, claim.state_directory / "refuser", pool.settings.visible_devices)
    metrics, admission = _build_metrics(found, events, book)
    relayed = _build_relay(found, pool, admission, faults.incidents, refuser, facts, metrics, sentinels)
    ending = Shutdown(pool, refuser, config.vendor.stop_seconds, lambda: daemon.see_off())
    board = DaemonBoard(pool, lambda timeout: daemon.quit(timeout))
    health = _build_health(found, pool, book, relayed and relayed[1], vault, faults, sentinels)
    services = Ports(
        leases=book,
        domains=DomainOperations(pool, upkeep, _wish(relayed), attachments.standing, book.uid_of),
        board=board,
        stopper=stopper,
        faults=faults.incidents,
        is_stopping=lambda: pool.is_stopping,
        problems=health.problems, warnings=health.warnings,
        fault_sources=faults.sources.standing,
        sentinels=sentinels.status if sentinels else lambda: "off",
        arenas=vault.arenas,
        keeper=vault.view,
        failover=failover,
        ends_at=lambda: ending.ends_at,
        **_facts(found),
    )
    api = Api(services, settings.api(config), events, found.audit, found.ranges, found.admin_group.gid)
    daemon = Daemon(
        pipe=claim.pipe,
        pool=pool,
        upkeep=upkeep,
        sessions=Sessions(board, found.public.write, settings.sessions(config), found.ranges, found.admin_group.gid),
        ending=ending,
        store=found.store,
        notifier=Notifier(found.environ),
        relayed=relayed,
        book=book,
        api=api,
        events=events,
        faults=faults,
        vault=vault, failover=failover,
        serve_metrics=partial(metrics.serve, services, _readings(found, relayed, api)) if metrics else None,
        restore=claim.restore,
        sentinels=sentinels,
        beside=[health.run, left.run, partial(_watch_signs, found, pool, events)],
    )
    return daemon


async def _watch_signs(found: Startup, pool: Pool, events: EventBus) -> None:
    frozen = FrozenClients(found.inspector, pool.program.unified)
    await watch_vital_signs(pool.domains, pool.notify, events.publish, frozen, pool.ranges.share_of)


def _facts(found: Startup) -> dict[str, Any]:
    """Return what the methods of the socket use of the machine."""
    return {
        "find_process": processes.process_id,
        "uid_of": _effective_uid,
        "owner_of": _owner_uid,
        "namespaces_of": processes.pid_namespaces,
        "started_at": time.time(),
        "facts": {"backend": found.config.backend, "is_privileged": found.is_privileged},
    }


def _build_metrics(found: Startup, events: EventBus, book: LeaseBook) -> tuple[Metrics | None, Admission]:
    """Build the metrics, and the admission, which the metrics time."""
    asked = settings.metrics(found.config)
    if asked is None:
        return None, book
    metrics = Metrics(asked, events, found.ranges)
    return metrics, metrics.timing(book)


def build_strangers(daemon: Daemon, config: Config) -> Strangers:
    return Strangers(daemon.pool, partial(_ends_strangers, config.domains.strangers), daemon.events.publish)


def _ends_strangers(action: str, domain: Domain) -> bool:
    return action == "terminate" or (action == "auto" and domain.guard.is_on)


def _open_book(found: Startup, pool: Pool, facts: ClientFacts, events: EventBus) -> LeaseBook:
    make = LeaseBook if found.is_privileged else UnenforcedBook
    admission = settings.admission(found.config, found.budget)
    return make(
        found.lease_store, lambda: pool.devices, admission, facts.identify, events.publish,
        ranges=found.ranges, is_retained=pool.retained.has,
    )  # fmt: skip


def _build_health(found: Startup, pool: Pool, book: LeaseBook, keeper: KeeperClient | None, vault: Vault,
                  faults: Faults, sentinels: Sentinels | None) -> Health:
    return Health(
        pool,
        book,
        StateDirectory(found.claim.state_directory),
        lambda: found.claim.pipe.missing,
        lambda: keeper.is_there if keeper else None,
        vault.view,
        lambda: found.store.trouble,
        lambda: faults.sources.lost_gpus,
        lambda: sentinels.warnings() if sentinels else (),
        lambda: sentinels.problems() if sentinels else (),
    )


def _readings(found: Startup, relayed: tuple[Relay, KeeperClient] | None, api: Api) -> Readings:
    return Readings(
        relay_connections=lambda: len(relayed[0].callers) if relayed else 0,
        api_connections=lambda: api.connections,
        log_lines_lost=lambda: found.journal.lost,
        audit_lines_lost=lambda: found.audit.lost,
        ask=api.ask_as,
    )


def _build_relay(
    found: Startup, pool: Pool, book: Admission, incidents: Incidents, refuser: Refuser, facts: ClientFacts,
    metrics: Metrics | None, sentinels: Sentinels | None,
) -> tuple[Relay, KeeperClient] | None:
    if not found.is_privileged:
        return None
    config, state = found.config, found.claim.state_directory
    program = programs.own_program("keeper")
    keeper = KeeperClient(found.inspector, program, state / "keeper", config.relay.max_connections * 2 + 16)
    progress = _open_progress(state / "progress", config.relay.max_connections)
    assignment = Assignment(pool, book, incidents, config.domains.per_gpu == "auto", facts)
    refusals = Refusals(refuser, config.relay.turn_seconds)
    relay_settings = settings.relay(config, found.is_privileged)
    conversations = Conversations(
        pool, keeper, progress, relay_settings, assignment, refusals,
        Offences(found.ranges.share_of if pool.settings.is_multiuser else None),
        prepare=sentinels.prepare if sentinels else None,
        took_handshake=metrics.took_handshake if metrics else None,
    )  # fmt: skip
    return Relay(conversations, found.ranges), keeper


def _effective_uid(pid: int) -> int | None:
    found = processes.owner(pid)
    return None if found is None else found[0]


def _owner_uid(process: ProcessId) -> int | None:
    """Return the uid of the process; None if it has ended."""
    found = processes.sole_uid(process.pid)
    return found if processes.is_alive(process) else None  # checked last: until now the pid was this process's


def _admitted(book: LeaseBook) -> set[ProcessId]:
    """Return the clients that have been admitted, and those that wait to be."""
    return {*book.grants(), *(entry.process for entry in book.queue() if entry.process is not None)}


def _needed(found: Startup, refuser: Refuser, vault: Vault, relayed: tuple[Relay, KeeperClient] | None,
            sentinels: Sentinels | None) -> set[int]:
    """Return the pids, other than those of the domains, that clients depend on."""
    return {found.inspector.pid, refuser.pid, *vault.keeper.pids, *([relayed[1].pid] if relayed else []),
            *(sentinels.pids if sentinels else ())}


def _open_progress(path: Path, slots: int) -> HandshakeProgress:
    try:
        return HandshakeProgress(path, slots)
    except OSError as exc:
        raise UnusablePath(f"{path} cannot be used: {exc.strerror}") from None


async def find_devices(
    config: Config, seconds: float = _NVML_START_SECONDS, limiter: trio.CapacityLimiter | None = None
) -> tuple[Device, ...]:
    """Return the devices to serve.  Raise VendorFailed, also if NVML does not answer in time: a hung GPU can block it."""
    from mpsd.gpu.nvml import read_devices  # pynvml is large: --version does not load it

    library = paths.nvml_library(config)
    with trio.move_on_after(seconds):
        return await run_in_thread(read_devices, settings.visible(config), library, abandon_on_cancel=True, limiter=limiter)
    raise VendorFailed(f"NVML has not answered for {seconds:g} seconds")
