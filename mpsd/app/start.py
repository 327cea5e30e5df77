"""Start the daemon and run it to its end: what it needs before its objects are built, and why it may refuse."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog
import trio

from mpsd import __version__
from mpsd.api.audit import open_audit
from mpsd.api.server import SOCKET as API_SOCKET
from mpsd.app import settings
from mpsd.app.build import build, build_strangers, find_devices
from mpsd.app.daemon import UI_SOCKET
from mpsd.app.descriptor_limit import fit_descriptors
from mpsd.app.instance_lock import InstanceLock
from mpsd.app.priority import raise_priority
from mpsd.app.readiness import answer_ready
from mpsd.app.removed_state import RemovedState
from mpsd.app.signals import Signals
from mpsd.app.startup import Startup
from mpsd.check.probes import Grade, probe_pid_namespace, probe_shared_memory
from mpsd.config import paths
from mpsd.config.loading import Invocation
from mpsd.config.options import Config
from mpsd.domains.public_log import PublicLog
from mpsd.domains.store import SqliteStore
from mpsd.errors import AlreadyRunning, ErrorCode, MpsdError
from mpsd.fairness.uid_ranges import UidRanges
from mpsd.faults.store import FaultStore
from mpsd.health.loop_watch import LoopWatch
from mpsd.host import draining, processes
from mpsd.host.bare_threads import begin_bare_threads
from mpsd.host.boot_id import read_boot_id
from mpsd.host.child_reaper import become_reaper
from mpsd.host.inspector import Inspector
from mpsd.host.peers import may_impersonate
from mpsd.host.process_watch import MOST as MOST_WATCHED
from mpsd.host.user_database import AdminGroup
from mpsd.leases.store import LeaseStore
from mpsd.log.journal import Journal, open_journal
from mpsd.log.suppressed import tell_suppressed
from mpsd.model.visible_text import visible
from mpsd.relay.public_sockets import DOORS
from mpsd.services.store import ServiceStore
from mpsd.stop.freezer import LeftFrozen, thaw_earlier
from mpsd.storage.checkpointing import Checkpointing
from mpsd.storage.database import drop_locks
from mpsd.vault.fencing import MOST_HOLDERS
from mpsd.vault.store import VaultStore

log = structlog.get_logger()
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, the vendor's exit status when it finds no device
_HOLDERS_DESCRIPTORS = MOST_HOLDERS + MOST_WATCHED


def main(config: Config, invocation: Invocation) -> int:
    """Run the daemon and return the exit status.  A refusal to start reaches the front end, which prints it."""
    environ, where = dict(os.environ), config.log_directory
    claim = journal = None
    try:
        ranges = paths.subordinate_uids()
        journal = open_journal(  # with a thread, which the limits of a user or a cgroup may not allow
            config.log, foreground=invocation.foreground, log_directory=where, terminal=sys.stderr, ranges=ranges
        )
        state = paths.state_directory(config, os.geteuid(), environ)
        claim = InstanceLock(Path(config.pipe_directory), Path(config.log_directory), state, (*DOORS, UI_SOCKET, API_SOCKET))
        claim.take()
        return trio.run(_run, config, invocation, environ, claim, journal, ranges)
    except BaseException as exc:
        refusal = _refusal_in(exc)
        if refusal is None:
            log.critical("daemon.bug", exc_info=True)
            answer_ready(invocation.ready_fd, 1, f"mpsd failed: {exc!r}; see {where}/mpsd.log\n")
            raise
        return _refuse(invocation, refusal)
    finally:
        if claim is not None:
            claim.release()
        if journal is not None:
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
    claim: InstanceLock,
    journal: Journal,
    ranges: UidRanges,
) -> int:
    is_privileged = may_impersonate()
    settings.check_enforceable(config, is_privileged=is_privileged)
    raise_priority(config.nice)
    config, allowance = fit_descriptors(config, _HOLDERS_DESCRIPTORS)
    with ExitStack() as opened:
        public = PublicLog(claim.log_directory, config.pipe_directory, invocation.foreground, log.warning)
        opened.callback(public.close)
        _announce(public, config)
        devices = await find_devices(config)
        drop_locks(claim.state_directory, processes.has_thread_ended)
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
        inspector = _begin_inspector(ranges, opened)
        await thaw_earlier(store, LeftFrozen(inspector, store))
        stores = (store, lease_store, fault_store, vault_store, service_store)
        admin_group = await AdminGroup.named(config.ui.admin_group)
        parts = (*stores, audit, inspector, allowance, ranges, admin_group, journal)
        found = Startup(config, invocation, environ, claim, public, devices, is_privileged, *parts)
        daemon = build(found)
        take_signal = Signals(config, invocation, journal, public, audit, allowance, admin_group).take
        write_back = Checkpointing(claim.state_directory)
        opened.callback(write_back.close)
        removed = RemovedState(claim, daemon.pool, write_back, daemon.move_state)
        tell = partial(tell_suppressed, *(each.tell_suppressed for each in (journal, audit, daemon.sessions)))
        daemon.beside += [admin_group.run, write_back.run, removed.run, tell]
        if is_privileged:  # otherwise every client bypasses mpsd
            daemon.beside.append(build_strangers(daemon, config).run)
        become_reaper()
        _say_what_works(is_privileged, config)
        _say_what_is_amiss()

        def ready() -> None:
            _watch_loop(opened)
            log.info("daemon.ready", version=__version__, pipe_directory=config.pipe_directory, backend=config.backend)
            answer_ready(invocation.ready_fd, 0)
            daemon.notifier.ready()

        return await daemon.run(ready, take_signal)


def _begin_inspector(ranges: UidRanges, opened: ExitStack) -> Inspector:
    """Start what reads other processes, and the threads without mpsd's descriptors.  Raises UnusablePath."""
    bare = begin_bare_threads()
    draining.begin(ranges.share_of, bare)
    inspector = Inspector(ranges=ranges, bare=bare)
    inspector.start()
    processes.count_by(ranges)
    processes.start_readers_by(inspector.start_reader)
    opened.callback(inspector.close)
    return inspector


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


def _announce(public: PublicLog, config: Config) -> None:
    """Write the vendor's first lines, which people and scripts look for."""
    public.write(f"Starting control daemon using socket {config.pipe_directory}/control")
    public.write("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + config.pipe_directory)
    public.write(f"mpsd {__version__}")


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
