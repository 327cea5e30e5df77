"""The one place that builds the daemon's objects and joins them."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog
import trio

from mpsd import __version__, places
from mpsd.config import Config, ConfigError, Invocation, changed
from mpsd.domains.pool import Pool, PoolSettings
from mpsd.domains.refuser import Refuser
from mpsd.domains.upkeep import Upkeep
from mpsd.domains.vendor import VendorProgram
from mpsd.errors import AlreadyRunning, ErrorCode, MpsdError, UnusablePath
from mpsd.faults.kernel_log import KERNEL_LOG
from mpsd.legacy.board import Defaults
from mpsd.legacy.devices import find_device
from mpsd.legacy.quantities import parse_limit
from mpsd.log import Journal, open_journal
from mpsd.model import Device
from mpsd.probes import Grade, probe_pid_namespace, probe_shared_memory
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.entrance import Entrance, Everybody
from mpsd.relay.message import may_impersonate
from mpsd.relay.progress import Progress
from mpsd.relay.refusals import Refusals
from mpsd.relay.relay import Relay
from mpsd.runtime.board import DaemonBoard
from mpsd.runtime.claim import Claim
from mpsd.runtime.daemon import UI_SOCKET, Daemon
from mpsd.runtime.doors import DOORS
from mpsd.runtime.ending import Ending
from mpsd.runtime.keeper import KeeperClient
from mpsd.runtime.limits import raise_descriptor_limit
from mpsd.runtime.notify import Notifier, answer_ready
from mpsd.runtime.public_log import PublicLog
from mpsd.runtime.reaper import become_reaper
from mpsd.runtime.sessions import Sessions, SessionSettings
from mpsd.runtime.store import SqliteStore

log = structlog.get_logger()
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, the vendor's exit status when it sees none
_DESCRIPTORS_PER_CONNECTION = 3  # the client's, the domain's, a pidfd
_DESCRIPTORS_BESIDES = 512


def main(config: Config, invocation: Invocation) -> int:
    """Run the daemon; the exit status.  A refusal to start reaches the front end, which prints it."""
    journal = open_journal(
        config.log, foreground=invocation.foreground, log_directory=config.log_directory, terminal=sys.stderr
    )
    environ = dict(os.environ)
    claim = None
    try:
        state = places.state_directory(config, os.geteuid(), environ)
        claim = Claim(Path(config.pipe_directory), Path(config.log_directory), state, (*DOORS, UI_SOCKET))
        claim.take()
        return trio.run(_run, config, invocation, environ, claim, journal)
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
    """What was refused, inside the nurseries or not, when nothing else went wrong there."""
    if isinstance(error, BaseExceptionGroup):
        refusals, rest = error.split(MpsdError)
        return _refusal_in(refusals.exceptions[0]) if refusals and rest is None else None
    return error if isinstance(error, MpsdError) else None


def _refuse(invocation: Invocation, error: MpsdError) -> int:
    status = _NO_DEVICE if error.code is ErrorCode.NO_SUCH_DEVICE else 1
    if not isinstance(error, AlreadyRunning):
        log.error("daemon.refused", why=str(error))
    if invocation.ready_fd is None:
        print(error, file=sys.stderr if invocation.foreground else sys.stdout)
    answer_ready(invocation.ready_fd, status, f"{error}\n")
    return status


async def _run(config: Config, invocation: Invocation, environ: Mapping[str, str], claim: Claim, journal: Journal) -> int:
    public = PublicLog(claim.log_directory, config.pipe_directory, invocation.foreground, log.warning)
    _announce(public, config)
    devices = await _read_devices(config)
    store = SqliteStore(claim.state_directory / "mpsd.db")
    is_privileged = may_impersonate()
    daemon = _build(config, invocation, environ, claim, public, store, devices, is_privileged)
    daemon.on_signal = _Signals(config, invocation, journal, public).take
    become_reaper()
    raise_descriptor_limit(config.relay.max_connections * _DESCRIPTORS_PER_CONNECTION + _DESCRIPTORS_BESIDES)
    _say_what_works(is_privileged, config)
    _say_what_is_amiss()

    def ready() -> None:
        log.info("daemon.ready", version=__version__, pipe_directory=config.pipe_directory, backend=config.backend)
        answer_ready(invocation.ready_fd, 0)
        daemon.notifier.ready()

    try:
        return await daemon.run(ready)
    finally:
        store.close()
        public.close()


def _announce(public: PublicLog, config: Config) -> None:
    """The vendor's first lines, which people and scripts look for."""
    public.write(f"Starting control daemon using socket {config.pipe_directory}/control")
    public.write(
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + config.pipe_directory
    )
    public.write(f"mpsd {__version__}")


def _build(
    config: Config,
    invocation: Invocation,
    environ: Mapping[str, str],
    claim: Claim,
    public: PublicLog,
    store: SqliteStore,
    devices: tuple[Device, ...],
    is_privileged: bool,
) -> Daemon:
    vendor = VendorProgram(
        places.find_vendor_control(config, environ),
        _vendor_environment(config, environ),
        config.vendor.command_seconds,
        config.vendor.start_seconds,
    )
    settings = _pool_settings(config, invocation, claim.state_directory)
    defaults = store.defaults() or _defaults(config, devices)
    pool = Pool(settings, vendor, devices, defaults, store, public.publish)
    refuser = Refuser(vendor, claim.state_directory / "refuser", settings.visible_devices)
    book = Everybody()
    upkeep = Upkeep(pool, config.vendor.stop_seconds, lambda: _read_devices(config))
    relayed = None
    if is_privileged:
        keeper = KeeperClient(
            places.native_directory() / "keeper" / "mpsd-keeper",
            claim.state_directory / "keeper",
            config.relay.max_connections * 2 + 16,
        )
        relay_settings = RelaySettings(
            config.relay.max_connections,
            config.relay.turn_seconds,
            config.relay.silent_seconds,
            is_privileged,
        )
        progress = _open_progress(claim.state_directory / "progress", config.relay.max_connections)
        entrance = Entrance(pool, book, config.domains.per_gpu == "auto")
        refusals = Refusals(refuser, config.relay.turn_seconds)
        relayed = (Relay(Conversations(pool, keeper, progress, relay_settings, entrance, refusals)), keeper)

    ending = Ending(pool, refuser, config.vendor.stop_seconds, lambda: daemon.see_off())
    ui = SessionSettings(config.ui.max_sessions, config.ui.idle_seconds, config.ui.admin_group)
    daemon: Daemon
    board = DaemonBoard(pool, lambda timeout: daemon.quit(timeout))
    sessions = Sessions(board, public.write, ui)
    daemon = Daemon(
        claim.pipe_directory,
        _kernel_log(config, environ),
        pool,
        upkeep,
        sessions,
        ending,
        store,
        Notifier(environ),
        relayed,
        _ignore_signal,
    )
    return daemon


def _open_progress(path: Path, slots: int) -> Progress:
    try:
        return Progress(path, slots)
    except OSError as exc:
        raise UnusablePath(f"{path} cannot be used: {exc.strerror}") from None


def _kernel_log(config: Config, environ: Mapping[str, str]) -> Path:
    """The simulator has its own, in the directory that stands for the machine (docs/simulator.md)."""
    if config.backend != "sim":
        return KERNEL_LOG
    return Path(environ.get("MPSD_SIM_DIR") or f"/tmp/mpsd-sim-{os.getuid()}", "kmsg")


def _pool_settings(config: Config, invocation: Invocation, state: Path) -> PoolSettings:
    return PoolSettings(
        home=state / "domains",
        spares=config.domains.spares,
        max_domains=config.domains.max_domains,
        clients_per_server=config.domains.clients_per_server,
        idle_seconds=config.domains.idle_seconds,
        poll_seconds=config.domains.poll_seconds,
        restart_seconds=config.domains.restart_seconds,
        restart_max_seconds=config.domains.restart_max_seconds,
        is_multiuser=invocation.multiuser_server,
        vendor_options=tuple(
            option
            for option, is_asked in (
                ("-multiuser-server", invocation.multiuser_server),
                ("-S", invocation.static_partitioning),
            )
            if is_asked
        ),
        visible_devices=_visible(config),
    )


def _visible(config: Config) -> str | None:
    return None if config.visible_devices == "all" else config.visible_devices


def _vendor_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """What mpsd was started with, which is how operators configure the vendor's daemon; less what is mpsd's own."""
    ours = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "MPSD_CONFIG"}
    return {name: value for name, value in environ.items() if name not in ours}


async def _read_devices(config: Config) -> tuple[Device, ...]:
    from mpsd.gpu.nvml import read_devices  # pynvml is large: not loaded by those who only ask for --version

    library = places.native_directory() / "sim" / "lib" / "libnvidia-ml.so.1" if config.backend == "sim" else None
    return await trio.to_thread.run_sync(read_devices, _visible(config), library)


def _defaults(config: Config, devices: tuple[Device, ...]) -> Defaults:
    """Of the configuration; raises NoSuchDevice for a limit of a device that is not here, since it would not hold."""
    limits = {
        find_device(devices, name).uuid: parse_limit(value)
        for name, value in config.limits.default_device_pinned_mem_limit.items()
    }
    percent = config.limits.default_active_thread_percentage
    return Defaults(percent, limits, config.limits.default_client_priority)


def _say_what_is_amiss() -> None:
    """What a daemon starts without, and clients then fail of."""
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


class _Signals:
    """SIGTERM and SIGINT end as configured; SIGHUP reads the configuration again and reopens the logs."""

    def __init__(self, config: Config, invocation: Invocation, journal: Journal, public: PublicLog) -> None:
        self._config = config
        self._invocation = invocation
        self._journal = journal
        self._public = public

    async def take(self, daemon: Daemon, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload(daemon)
        elif self._config.stop.on_sigterm == "leave":
            daemon.stop.set()
        else:
            daemon.notifier.stopping()
            seconds = self._config.stop.drain_seconds if self._config.stop.on_sigterm == "drain" else 0.0
            daemon.begin_quit(seconds)

    def _reload(self, daemon: Daemon) -> None:
        daemon.notifier.reloading()
        self._public.reopen()
        try:
            new = self._invocation.load(os.environ)
        except ConfigError as exc:
            log.error("reload.refused", why=str(exc), kept="the configuration in force")
        else:
            live, restart = changed(self._config, new)
            self._apply(daemon, new)
            log.info("reload.done", changed=live, need_a_restart=restart)
        daemon.notifier.ready()

    def _apply(self, daemon: Daemon, new: Config) -> None:
        self._config = new
        self._journal.configure(new.log)
        old = daemon.pool.settings
        daemon.pool.settings = replace(
            old,
            spares=new.domains.spares,
            max_domains=new.domains.max_domains,
            idle_seconds=new.domains.idle_seconds,
            poll_seconds=new.domains.poll_seconds,
            restart_seconds=new.domains.restart_seconds,
            restart_max_seconds=new.domains.restart_max_seconds,
            clients_per_server=new.domains.clients_per_server,
        )
        for domain in daemon.pool.domains.values():
            domain.capacity = new.domains.clients_per_server
        daemon.sessions.settings = SessionSettings(new.ui.max_sessions, new.ui.idle_seconds, new.ui.admin_group)
        daemon.pool.notify()


async def _ignore_signal(daemon: Daemon, number: int) -> None:
    """Before the signals have a taker."""
