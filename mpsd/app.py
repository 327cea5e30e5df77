"""The one place that builds the daemon's objects and joins them."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog
import trio

from mpsd import __version__, places, processes, settings
from mpsd.api.audit import open_audit
from mpsd.api.events import EventBus
from mpsd.api.server import SOCKET as API_SOCKET
from mpsd.api.server import Api
from mpsd.api.services import Services
from mpsd.client_facts import ClientFacts
from mpsd.config import Invocation
from mpsd.domains.domain import Domain
from mpsd.domains.life import live
from mpsd.domains.pool import Pool
from mpsd.domains.refuser import Refuser
from mpsd.domains.upkeep import Upkeep
from mpsd.domains.vital_signs import watch_vital_signs
from mpsd.errors import AlreadyRunning, BadConfiguration, ErrorCode, MpsdError, UnusablePath
from mpsd.failover.ends import MOST as MOST_WATCHED
from mpsd.failover.joining import join_failover
from mpsd.failover.store import ServiceStore
from mpsd.faults.desk import FaultDesk
from mpsd.faults.faults import Faults
from mpsd.faults.joining import join_faults
from mpsd.faults.store import FaultStore
from mpsd.found import Found
from mpsd.inspector import Inspector
from mpsd.leases.book import LeaseBook
from mpsd.leases.store import LeaseStore, read_boot_id
from mpsd.leases.unenforced import UnenforcedBook
from mpsd.log import Journal, open_journal
from mpsd.metrics.server import Metrics
from mpsd.metrics.source import Readings
from mpsd.model import Device, ProcessId
from mpsd.options import Config
from mpsd.policy.uid_ranges import UidRanges
from mpsd.probes import Grade, probe_pid_namespace, probe_shared_memory
from mpsd.relay.conversation import Conversations
from mpsd.relay.entrance import Admission, Entrance
from mpsd.relay.message import may_impersonate
from mpsd.relay.progress import Progress
from mpsd.relay.refusals import Refusals
from mpsd.relay.relay import Relay
from mpsd.runtime.board import DaemonBoard
from mpsd.runtime.claim import Claim
from mpsd.runtime.daemon import UI_SOCKET, Daemon
from mpsd.runtime.doors import DOORS
from mpsd.runtime.ending import Ending
from mpsd.runtime.health import Health
from mpsd.runtime.keeper import KeeperClient
from mpsd.runtime.limits import fit_descriptors
from mpsd.runtime.loop_watch import LoopWatch
from mpsd.runtime.notify import Notifier, answer_ready
from mpsd.runtime.operations import DomainOperations
from mpsd.runtime.public_log import PublicLog
from mpsd.runtime.reaper import become_reaper
from mpsd.runtime.removed_state import RemovedState
from mpsd.runtime.sessions import Sessions
from mpsd.runtime.signals import Signals
from mpsd.runtime.state_directory import StateDirectory
from mpsd.runtime.stopping import Stopper
from mpsd.runtime.store import SqliteStore
from mpsd.runtime.strangers import Strangers
from mpsd.runtime.suppressed import tell_suppressed
from mpsd.runtime.targets import Targets
from mpsd.runtime.write_back import WriteBack
from mpsd.user_database import AdminGroup
from mpsd.vault.holders import MOST_HOLDERS
from mpsd.vault.joining import join_vault
from mpsd.vault.store import VaultStore
from mpsd.vault.vault import Vault
from mpsd.visible import visible

log = structlog.get_logger()
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, the vendor's exit status when it finds no device
_HOLDERS_DESCRIPTORS = MOST_HOLDERS + MOST_WATCHED


def main(config: Config, invocation: Invocation) -> int:
    """Run the daemon and return the exit status.  A refusal to start reaches the front end, which prints it."""
    ranges = places.subordinate_uids()
    journal = open_journal(
        config.log, foreground=invocation.foreground, log_directory=config.log_directory, terminal=sys.stderr, ranges=ranges
    )
    environ = dict(os.environ)
    claim = None
    try:
        state = places.state_directory(config, os.geteuid(), environ)
        claim = Claim(Path(config.pipe_directory), Path(config.log_directory), state, (*DOORS, UI_SOCKET, API_SOCKET))
        claim.take()
        return trio.run(_run, config, invocation, environ, claim, journal, ranges)
    except BaseException as exc:
        refusal = _refusal_in(exc)
        if refusal is None:
            log.critical("daemon.bug", exc_info=True)
            answer_ready(invocation.ready_fd, 1, f"mpsd failed: {exc!r}; see {config.log_directory}/mpsd.log\n")
            raise
        return _refuse(invocation, refusal)
    finally:
        if claim is not None:
            claim.release()
        journal.close()


def _refusal_in(error: BaseException) -> MpsdError | None:
    """Return the refusal, from inside nurseries or not; None if anything else went wrong too."""
    if isinstance(error, BaseExceptionGroup):
        refusals, rest = error.split(MpsdError)
        return _refusal_in(refusals.exceptions[0]) if refusals and rest is None else None
    return error if isinstance(error, MpsdError) else None


def _refuse(invocation: Invocation, error: MpsdError) -> int:
    status = _NO_DEVICE if error.code is ErrorCode.NO_SUCH_DEVICE else 1
    if not isinstance(error, AlreadyRunning):
        log.error("daemon.refused", why=str(error))
    if invocation.ready_fd is None:
        print(visible(str(error), keep="\n"), file=sys.stderr if invocation.foreground else sys.stdout)
    answer_ready(invocation.ready_fd, status, f"{error}\n")  # the front end escapes what it prints
    return status


async def _run(
    config: Config,
    invocation: Invocation,
    environ: Mapping[str, str],
    claim: Claim,
    journal: Journal,
    ranges: UidRanges,
) -> int:
    is_privileged = may_impersonate()
    _check_enforceable(config, is_privileged)
    config, allowance = fit_descriptors(config, _HOLDERS_DESCRIPTORS)
    with ExitStack() as opened:
        public = PublicLog(claim.log_directory, config.pipe_directory, invocation.foreground, log.warning)
        opened.callback(public.close)
        _announce(public, config)
        devices = await _read_devices(config)
        store = SqliteStore(claim.state_directory / "mpsd.db")
        opened.callback(store.close)
        lease_store = LeaseStore(claim.state_directory / "leases.db", read_boot_id())
        opened.callback(lease_store.close)
        fault_store = FaultStore(claim.state_directory / "faults.db", config.faults.kept)
        opened.callback(fault_store.close)
        vault_store = VaultStore(claim.state_directory / "vault.db")
        opened.callback(vault_store.close)
        audit = open_audit(str(claim.log_directory), config.log, ranges)
        opened.callback(audit.close)
        service_store = ServiceStore(claim.state_directory / "services.db")
        opened.callback(service_store.close)
        inspector = Inspector(ranges=ranges)
        inspector.start()
        opened.callback(inspector.close)
        stores = (store, lease_store, fault_store, vault_store, service_store)
        admin_group = await AdminGroup.named(config.ui.admin_group)
        parts = (*stores, audit, inspector, allowance, ranges, admin_group)
        found = Found(config, invocation, environ, claim, public, devices, is_privileged, *parts)
        daemon = _build(found)
        daemon.on_signal = Signals(config, invocation, journal, public, audit, allowance, admin_group).take
        write_back = WriteBack(claim.state_directory)
        opened.callback(write_back.close)
        removed = RemovedState(claim, daemon.pool, write_back, daemon.move_state)
        tell = partial(tell_suppressed, *(each.tell_suppressed for each in (journal, audit, daemon.sessions)))
        daemon.beside += [admin_group.run, write_back.run, removed.run, tell]
        if is_privileged:  # otherwise every client bypasses mpsd
            daemon.beside.append(_build_strangers(daemon, config).run)
        become_reaper()
        _say_what_works(is_privileged, config)
        _say_what_is_amiss()

        def ready() -> None:
            _watch_loop(opened)
            log.info("daemon.ready", version=__version__, pipe_directory=config.pipe_directory, backend=config.backend)
            answer_ready(invocation.ready_fd, 0)
            daemon.notifier.ready()

        return await daemon.run(ready)


def _watch_loop(opened: ExitStack) -> None:
    """Watch the event loop from now on: before this mpsd serves no client, and reading databases and devices may take long."""
    try:
        watch = LoopWatch()
    except OSError as exc:
        log.info("loop.unwatched", why=exc.strerror)
        return
    opened.callback(watch.close)
    trio.lowlevel.add_instrument(watch)
    opened.callback(trio.lowlevel.remove_instrument, watch)


def _check_enforceable(config: Config, is_privileged: bool) -> None:
    """Raise BadConfiguration for what mpsd cannot enforce: it cannot refuse clients that reach the domains directly."""
    if config.admission.default == "refuse" and not is_privileged:
        raise BadConfiguration('admission.default = "refuse" needs root: without it clients do not pass through mpsd')


def _announce(public: PublicLog, config: Config) -> None:
    """Write the vendor's first lines, which people and scripts look for."""
    public.write(f"Starting control daemon using socket {config.pipe_directory}/control")
    public.write("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + config.pipe_directory)
    public.write(f"mpsd {__version__}")


def _build_pool(found: Found) -> Pool:
    vendor = settings.vendor(found.config, found.environ, found.inspector, is_relayed=found.is_privileged)
    pool_settings = settings.pool(found.config, found.invocation, found.claim.state_directory)
    defaults = found.store.defaults() or settings.defaults(found.config, found.devices)
    store, public = found.store, found.public.publish
    return Pool(pool_settings, vendor, found.devices, defaults, store, public, live, ranges=found.ranges)


def _wish(relayed: tuple[Relay, KeeperClient] | None) -> Callable[[ProcessId, int | None, str], None] | None:
    return None if relayed is None else relayed[0].conversations.entrance.wish


def _build(found: Found) -> Daemon:
    config, claim = found.config, found.claim
    pool = _build_pool(found)
    upkeep = Upkeep(pool, config.vendor.stop_seconds, lambda: _read_devices(config))
    events = EventBus()
    facts = ClientFacts(found.inspector)
    book = _open_book(found, pool, facts, events)
    stopper = Stopper(pool, Targets(pool, lambda: _admitted(book), lambda: _needed(found, refuser, vault, relayed)))
    faults = join_faults(found, pool, book, stopper, events, facts)
    notifier = Notifier(found.environ)
    vault = join_vault(found, lambda: pool.devices, book, faults.attachments, events)
    failover = join_failover(found, pool, vault, stopper, faults, events)
    refuser = Refuser(pool.program, claim.state_directory / "refuser", pool.settings.visible_devices)
    metrics, admission = _build_metrics(config, events, book)
    relayed = _build_relay(found, pool, admission, faults.desk, refuser, facts, metrics) if found.is_privileged else None
    ending = Ending(pool, refuser, config.vendor.stop_seconds, lambda: daemon.see_off())
    board = DaemonBoard(pool, lambda timeout: daemon.quit(timeout))
    health = _build_health(found, pool, book, relayed and relayed[1], faults)
    services = Services(
        book,
        DomainOperations(pool, upkeep, _wish(relayed), faults.attachments.standing, book.uid_of),
        board,
        stopper,
        faults.desk,
        processes.process_id,
        _owner_uid,
        processes.pid_namespaces,
        lambda: pool.is_stopping,
        health.problems,
        time.time(),
        {"backend": config.backend, "is_privileged": found.is_privileged},
        faults.sources.standing,
        vault.arenas,
        vault.view,
        failover,
        lambda: ending.ends_at,
    )
    api = Api(services, settings.api(config), events, found.audit, found.ranges, found.admin_group.gid)
    daemon = Daemon(
        claim.pipe,
        pool,
        upkeep,
        Sessions(board, found.public.write, settings.sessions(config), found.ranges, found.admin_group.gid),
        ending,
        found.store,
        notifier,
        relayed,
        book,
        api,
        events,
        faults,
        vault,
        failover,
        partial(metrics.serve, services, _readings(found, relayed, api)) if metrics else None,
        claim.restore,
        _ignore_signal,
    )
    daemon.beside += [health.run, partial(watch_vital_signs, pool.domains, pool.notify)]
    return daemon


def _build_metrics(config: Config, events: EventBus, book: LeaseBook) -> tuple[Metrics | None, Admission]:
    """Build the metrics, and the admission, which the metrics time."""
    asked = settings.metrics(config)
    if asked is None:
        return None, book
    metrics = Metrics(asked, events)
    return metrics, metrics.timing(book)


def _build_strangers(daemon: Daemon, config: Config) -> Strangers:
    return Strangers(daemon.pool, partial(_ends_strangers, config.domains.strangers), daemon.events.publish)


def _ends_strangers(action: str, domain: Domain) -> bool:
    return action == "terminate" or (action == "auto" and domain.guard.is_on)


def _open_book(found: Found, pool: Pool, facts: ClientFacts, events: EventBus) -> LeaseBook:
    make = LeaseBook if found.is_privileged else UnenforcedBook
    admission = settings.admission(found.config, found.budget)
    return make(found.lease_store, lambda: pool.devices, admission, facts.identify, events.publish, ranges=found.ranges)


def _build_health(found: Found, pool: Pool, book: LeaseBook, keeper: KeeperClient | None, faults: Faults) -> Health:
    return Health(
        pool,
        book,
        StateDirectory(found.claim.state_directory),
        lambda: found.claim.pipe.missing,
        lambda: keeper.is_there if keeper else None,
        lambda: found.store.trouble,
        lambda: faults.sources.lost_gpus,
    )


def _readings(found: Found, relayed: tuple[Relay, KeeperClient] | None, api: Api) -> Readings:
    return Readings(
        relay_connections=lambda: len(relayed[0].callers) if relayed else 0,
        api_connections=lambda: api.connections,
        audit_lines_lost=lambda: found.audit.lost,
    )


def _build_relay(
    found: Found, pool: Pool, book: Admission, desk: FaultDesk, refuser: Refuser, facts: ClientFacts, metrics: Metrics | None
) -> tuple[Relay, KeeperClient]:
    config, state = found.config, found.claim.state_directory
    program = places.native_directory() / "keeper" / "mpsd-keeper"
    keeper = KeeperClient(program, state / "keeper", config.relay.max_connections * 2 + 16)
    progress = _open_progress(state / "progress", config.relay.max_connections)
    entrance = Entrance(pool, book, desk, config.domains.per_gpu == "auto", facts)
    refusals = Refusals(refuser, config.relay.turn_seconds)
    relay_settings = settings.relay(config, found.is_privileged)
    conversations = Conversations(pool, keeper, progress, relay_settings, entrance, refusals)
    if metrics:
        conversations.took_handshake = metrics.took_handshake
    return Relay(conversations, found.ranges), keeper


def _owner_uid(process: ProcessId) -> int | None:
    """Return the uid of the process; None if it has ended."""
    found = processes.sole_uid(process.pid)
    return found if processes.is_alive(process) else None  # checked last: until now the pid was this process's


def _admitted(book: LeaseBook) -> set[ProcessId]:
    """Return the clients that have been admitted, and those that wait to be."""
    return {*book.grants(), *(entry.process for entry in book.queue() if entry.process is not None)}


def _needed(found: Found, refuser: Refuser, vault: Vault, relayed: tuple[Relay, KeeperClient] | None) -> set[int]:
    """Return the pids, other than those of the domains, that clients depend on."""
    return {found.inspector.pid, refuser.pid, *vault.keeper.pids, *([relayed[1].pid] if relayed else [])}


def _open_progress(path: Path, slots: int) -> Progress:
    try:
        return Progress(path, slots)
    except OSError as exc:
        raise UnusablePath(f"{path} cannot be used: {exc.strerror}") from None


async def _read_devices(config: Config) -> tuple[Device, ...]:
    from mpsd.gpu.nvml import read_devices  # pynvml is large: --version does not load it

    return await trio.to_thread.run_sync(read_devices, settings.visible(config), places.nvml_library(config))


def _say_what_is_amiss() -> None:
    """Warn of machine faults that do not stop mpsd but make clients fail."""
    for finding in (probe_shared_memory(), probe_pid_namespace()):
        if finding.grade is not Grade.GOOD:
            log.warning("machine.unfit", what=finding.area, found=finding.found, advice=finding.advice)


def _say_what_works(is_privileged: bool, config: Config) -> None:
    if is_privileged:
        log.info("mode.privileged", works="relay, placement of every client, restart without losing a waiting client")
    else:
        log.warning(
            "mode.unprivileged",
            why="mpsd may not send other processes' credentials (not root, or CAP_SYS_ADMIN is missing)",
            works="command language, fault domains, new clients go to a healthy domain",
            does_not_work="limits per client, placing by client, holding clients across a restart of mpsd, other users",
        )
    if config.backend == "sim":
        log.warning("backend.simulator", why="it was asked for; no GPU is used")


async def _ignore_signal(daemon: Daemon, number: int) -> None:
    """Do nothing: the handler until the real one is set."""
