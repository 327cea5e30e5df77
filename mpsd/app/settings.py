"""The settings of each part of the daemon, taken from the configuration."""

import os
from collections.abc import Mapping
from pathlib import Path

from mpsd.api.server import ApiSettings
from mpsd.commands.sessions import SessionSettings
from mpsd.config import paths
from mpsd.config.loading import Invocation
from mpsd.config.options import Config
from mpsd.domains.settings import PoolSettings
from mpsd.domains.vendor_control import VendorProgram
from mpsd.errors import BadConfiguration
from mpsd.faults.rules.settings import FaultSettings
from mpsd.faults.sources.kernel_log import KERNEL_LOG
from mpsd.faults.sources.kmod_records import Mode
from mpsd.host.inspector import Inspector
from mpsd.host.programs import own_program
from mpsd.host.rules.descriptor_budget import Budget
from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.metrics.server import MetricsSettings
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.domain import Defaults
from mpsd.model.lease import Refusal
from mpsd.model.quantities import parse_limit
from mpsd.relay.conversation import RelaySettings
from mpsd.sentinel.protection import SentinelSettings
from mpsd.services.rules.fault_fence import Settle
from mpsd.services.rules.promotion_types import PromotionLimits
from mpsd.services.settings import FailoverSettings, elastic_policy
from mpsd.uvm.status import UvmSettings
from mpsd.vault.rules.settings import Eviction, VaultSettings

_USERS_SHARE_OF_QUEUE = 8  # one user can fill an eighth of the queue


def check_enforceable(config: Config, *, is_privileged: bool) -> None:
    """Raise BadConfiguration for what mpsd cannot enforce: it cannot refuse clients that reach the domains directly."""
    if config.admission.default == "refuse" and not is_privileged:
        raise BadConfiguration('admission.default = "refuse" needs root: without it clients do not pass through mpsd')


def vendor(
    config: Config, environ: Mapping[str, str], inspector: Inspector, unified: Path | None, *, is_relayed: bool
) -> VendorProgram:
    """Return the vendor's program.

    unified: where cgroup v2 is mounted.  is_relayed: clients reach vendor daemons only through mpsd.
    """
    return VendorProgram(
        paths.find_vendor_control(config, environ),
        _vendor_environment(environ),
        config.vendor.command_seconds,
        config.vendor.start_seconds,
        inspector,
        own_program("launcher") if is_relayed else None,
        unified,
    )


def kernel_log(config: Config, environ: Mapping[str, str]) -> Path:
    """Return the kernel log; the simulator has its own, in the directory that replaces the machine (docs/simulator.md)."""
    return KERNEL_LOG if config.backend != "sim" else simulated_machine(environ) / "kmsg"


def simulated_machine(environ: Mapping[str, str]) -> Path:
    """Return the directory that replaces the machine for the simulator."""
    return Path(environ.get("MPSD_SIM_DIR") or f"/tmp/mpsd-sim-{os.getuid()}")


def pool(config: Config, invocation: Invocation, state: Path) -> PoolSettings:
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
        visible_devices=visible(config),
        recycle_seconds=config.faults.recycle_seconds,
        reserved_per_gpu=int(config.sentinel.mode != "off"),
        is_guarded=config.admission.default == "refuse",
    )


def sentinel(config: Config) -> SentinelSettings:
    return SentinelSettings(
        is_on=config.sentinel.mode != "off",
        is_required=config.sentinel.mode == "required",
        start_seconds=config.sentinel.start_seconds,
        drain_seconds=config.sentinel.drain_seconds,
        program=own_program("sentinel"),
    )



def visible(config: Config) -> str | None:
    return None if config.visible_devices == "all" else config.visible_devices


def _vendor_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return mpsd's environment, by which operators configure the vendor's daemon, without mpsd's own variables."""
    ours = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "MPSD_CONFIG"}
    return {name: value for name, value in environ.items() if name not in ours}


def defaults(config: Config, devices: tuple[Device, ...]) -> Defaults:
    """Return the configured defaults; raise NoSuchDevice for a limit of an unknown device, since it would have no effect."""
    limits = {
        find_device(devices, name).uuid: parse_limit(value)
        for name, value in config.limits.default_device_pinned_mem_limit.items()
    }
    percent = config.limits.default_active_thread_percentage
    return Defaults(percent, limits, config.limits.default_client_priority)


def relay(config: Config, may_impersonate: bool) -> RelaySettings:
    return RelaySettings(
        config.relay.max_connections, config.relay.turn_seconds, config.relay.silent_seconds, may_impersonate,
        trusts_containers=config.ui.container_operators,
    )  # fmt: skip


def sessions(config: Config) -> SessionSettings:
    return SessionSettings(config.ui.max_sessions, config.ui.idle_seconds, config.ui.container_operators)


def api(config: Config) -> ApiSettings:
    return ApiSettings(
        max_connections=config.api.max_connections,
        max_per_user=config.api.max_per_user,
        max_queued_events=config.api.max_queued_events,
        idle_seconds=config.api.idle_seconds,
        trusts_containers=config.ui.container_operators,
    )


def metrics(config: Config) -> MetricsSettings | None:
    """Return None if no address is configured."""
    if not config.metrics.listen:
        return None
    return MetricsSettings(config.metrics.listen, config.metrics.max_connections, config.metrics.token_file)


def faults(config: Config) -> FaultSettings:
    return FaultSettings(
        ends_culprit=config.faults.culprit == "end",
        culprit_seconds=config.faults.culprit_seconds,
        quarantine=config.faults.quarantine == "on",
        quarantine_seconds=config.faults.quarantine_seconds,
        suspect_seconds=config.faults.suspect_seconds,
        groups=config.faults.groups,
        crash_faults=config.faults.crash_faults,
        crash_seconds=config.faults.crash_seconds,
        crash_pause_max=config.faults.crash_pause_max,
        drain_on_device_fault=config.faults.drain_on_device_fault == "on",
    )


def kmod_mode(config: Config) -> Mode:
    return next(mode for mode in Mode if mode.word == config.faults.kmod_policy)


def uvm(config: Config, budget: Budget) -> UvmSettings:
    return UvmSettings(
        events=config.faults.uvm_events == "on",
        shield=config.faults.shield,
        hold=config.faults.hold == "on",
        hold_seconds=config.faults.hold_seconds,
        most=budget.clients,
    )


def vault(config: Config) -> VaultSettings:
    memory = config.vault.memory
    is_share = memory.endswith("%")
    return VaultSettings(
        memory_bytes=parse_limit(memory) if memory and not is_share else None,
        memory_share=int(memory[:-1]) / 100 if is_share else None,
        user_memory_bytes=parse_limit(config.vault.user_memory) if config.vault.user_memory else None,
        max_arenas=config.vault.max_arenas,
        user_arenas=config.vault.user_arenas,
        max_allocations=config.vault.max_allocations,
        user_allocations=config.vault.user_allocations,
        layout_bytes=parse_limit(config.vault.layouts),
        eviction=Eviction(config.vault.eviction),
        evicts_all=config.vault.evict_from == "everybody",
        is_prompt=config.vault.fence == "prompt",
        is_kept=config.vault.keep == "keep",
        operators=frozenset({0, os.geteuid()}),
    )


def failover(config: Config) -> FailoverSettings:
    limits = PromotionLimits(
        most_promotions=config.services.most_promotions,
        window_seconds=config.services.window_seconds,
        yield_seconds=config.services.yield_seconds,
        promote_seconds=config.services.promote_seconds,
        fence_seconds=config.services.fence_seconds,
    )
    settle = Settle(config.services.settle_sm, config.services.settle_mmu)
    elastic = elastic_policy(config.admission.move_cost_seconds)
    return FailoverSettings(limits, settle, config.services.follow_grace, elastic)


def admission(config: Config, budget: Budget) -> AdmissionSettings:
    """Return the settings; in a configuration 0 and "" mean that a limit is absent."""
    return AdmissionSettings(
        default=config.admission.default,
        refuse_with=Refusal(config.admission.refuse_with),
        wait_seconds=config.admission.wait_seconds or None,
        sm_oversubscription=config.admission.sm_oversubscription,
        memory_oversubscription=config.admission.memory_oversubscription,
        max_leases=config.admission.max_leases,
        max_clients=min(config.relay.max_connections, budget.clients),
        is_short_of_files=budget.is_short,
        max_queue=config.admission.max_queue,
        user_queue=max(1, config.admission.max_queue // _USERS_SHARE_OF_QUEUE),
        backfill_seconds=config.admission.backfill_seconds,
        user_sm_percent=config.admission.user_sm_percent or None,
        user_memory_bytes=parse_limit(config.admission.user_memory) if config.admission.user_memory else None,
        user_clients=config.admission.user_clients or None,
        user_leases=config.admission.user_leases or None,
        group_quotas={group: _quota(text) for group, text in config.admission.group_quotas.items()},
        group_totals={group: _quota(text) for group, text in config.admission.group_totals.items()},
        operators=frozenset({0, os.geteuid()}),
        redistribute=config.admission.redistribute,
        inherit_seconds=config.admission.inherit_seconds,
        move_cost_seconds=config.admission.move_cost_seconds,
    )


def _quota(text: str) -> Quota:
    """Parse a quota whose words config/value_checks.py has checked."""
    words = dict(word.split("=") for word in text.split(","))
    return Quota(
        float(words["sm"]) if "sm" in words else None,
        parse_limit(words["memory"]) if "memory" in words else None,
        int(words["clients"]) if "clients" in words else None,
        int(words["leases"]) if "leases" in words else None,
    )
