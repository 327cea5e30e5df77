"""Every option of mpsd, once: name, type, default, accepted values, help.

loading.py combines file, environment and command line; docs/configuration.md is generated from this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mpsd.config import schema
from mpsd.config.log_options import LogOptions
from mpsd.config.schema import Option, option, section
from mpsd.config.sentinel_options import SentinelOptions
from mpsd.config.service_options import ServiceOptions
from mpsd.config.value_checks import (
    DEVICES,
    FACTOR,
    GROUP,
    INTERVAL,
    LISTEN,
    MEMORY,
    MEMORY_BY_DEVICE,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    QUOTA_BY_GROUP,
    SOCKET_PATH_BYTES,
    absolute_path,
    between,
    or_empty,
)
from mpsd.config.vault_options import VaultOptions

PIPE_DIRECTORY_BYTES = SOCKET_PATH_BYTES - len("/control_privileged")
STATE_DIRECTORY_BYTES = SOCKET_PATH_BYTES - len("/domains/0123456789abcdef/pipe/control_privileged")


@dataclass(frozen=True, slots=True)
class VendorOptions:
    """The vendor's control program, and its time limits."""

    control: str = option(
        "",
        "The vendor's nvidia-cuda-mps-control. Empty: searched in /usr/lib/mpsd/vendor, /usr/bin (as .vendor), PATH, "
        "/usr/bin and /usr/local/nvidia/bin; our own front end is skipped.",
        accept=or_empty(absolute_path(4095)),
        needs_restart=True,
    )
    command_seconds: float = option(
        5.0, "How long one command to a vendor daemon may take.", accept=POSITIVE, needs_restart=True
    )
    start_seconds: float = option(
        30.0, "How long a vendor daemon or server may take to start.", accept=POSITIVE, needs_restart=True
    )
    stop_seconds: float = option(
        10.0, "How long a vendor daemon may take to quit before it is killed.", accept=POSITIVE, needs_restart=True
    )


@dataclass(frozen=True, slots=True)
class DomainOptions:
    """Fault domains: their number, size and lifetime."""

    spares: int = option(1, "Hot spares kept ready per GPU set, started and without clients.", accept=between(0, 8))
    max_domains: int = option(8, "Most fault domains on each GPU, spares included.", accept=between(1, 64))
    clients_per_server: int = option(
        48,
        "Clients one vendor server takes before the next domain is used. 48 for driver 580; 60 from 590.",
        accept=between(1, 1024),
    )
    per_gpu: Literal["auto", "never"] = option(
        "auto",
        '"auto": separate domains for each GPU, if clients can be distinguished by the GPUs they see. '
        '"never": every domain has all GPUs.',
        needs_restart=True,
    )
    strangers: Literal["auto", "report", "terminate"] = option(
        "auto",
        'Clients past mpsd, always reported: "terminate" ends their GPU work, "auto" where clients have limits of their own.',
        needs_restart=True,
    )
    idle_seconds: float = option(300.0, "A domain without clients for this long is recycled.", accept=POSITIVE)
    poll_seconds: float = option(60.0, "How often each vendor daemon is asked for its servers and clients.", accept=POSITIVE)
    restart_seconds: float = option(0.5, "First wait before a dead vendor daemon is restarted; doubles.", accept=POSITIVE)
    restart_max_seconds: float = option(30.0, "Longest wait before a dead vendor daemon is restarted.", accept=POSITIVE)


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Clients that connect to a domain."""

    max_connections: int = option(
        4096,
        "The most connections at once, an eighth of them for users with few; further clients wait in the kernel's queue.",
        accept=between(1, 65536),
        needs_restart=True,
    )
    turn_seconds: float = option(
        0.5,
        "How long a client may stay silent while a vendor daemon waits for it; then the daemon is freed for others, "
        "and the client is linked again when it sends. Ten times as long, a client may keep those of other users waiting.",
        accept=POSITIVE,
        needs_restart=True,
    )
    silent_seconds: float = option(
        10.0,
        "Where max_connections is reached, mpsd closes a connection that has sent nothing for this long, to make room.",
        accept=POSITIVE,
        needs_restart=True,
    )


@dataclass(frozen=True, slots=True)
class UiOptions:
    """Command sessions: the front end without arguments, and programs that pipe commands into it."""

    max_sessions: int = option(
        256, "Most sessions at once, an eighth for operators; then the one idle longest makes way.", accept=between(1, 65536)
    )
    admin_group: str = option("", 'Members may change limits and end clients, as root may. "": no group.', accept=GROUP)
    container_operators: bool = option(False, "Root of a container, and admin_group there, may do what root may outside.")
    idle_seconds: float = option(300.0, "A session that is silent for this long is closed.", accept=POSITIVE)


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Which clients may run, and the budgets of leases (docs/leases.md)."""

    default: Literal["share", "refuse"] = option(
        "share", '"share": a client without a lease runs with the default limits. "refuse": it does not run.'
    )
    refuse_with: Literal["wait", "error", "end"] = option(
        "wait",
        'How mpsd refuses a client that may not run. "wait": it waits until it has a lease. "error": its CUDA gets error 805. '
        '"end": its process is killed before it has a context.',
    )
    wait_seconds: float = option(
        0.0, "How long a client may wait for room before it is refused. 0: for ever.", accept=NOT_NEGATIVE
    )
    sm_oversubscription: float = option(
        1.0, "The SM shares of a GPU's leases may add up to this many times the GPU.", accept=FACTOR
    )
    memory_oversubscription: float = option(
        1.0, "The memory limits of a GPU's leases may add up to this many times its memory.", accept=FACTOR
    )
    max_leases: int = option(10_000, "Most leases at once.", accept=between(1, 1_000_000))
    max_queue: int = option(1024, "Most that may wait at once, leases and clients together.", accept=between(1, 65536))
    backfill_seconds: float = option(
        30.0, "For so long may others that fit pass one that does not; then what becomes free is kept for it.",
        accept=NOT_NEGATIVE,
    )  # fmt: skip
    user_sm_percent: float = option(0.0, "Quota of each user: SM share on each GPU. 0: none.", accept=NOT_NEGATIVE)
    user_memory: str = option("", 'Quota of each user: memory on each GPU, as "40G". "": none.', accept=or_empty(MEMORY))
    user_clients: int = option(0, "Quota of each user: clients at once. 0: none.", accept=between(0, 1_000_000))
    user_leases: int = option(256, "Quota of each user: leases at once. 0: none.", accept=between(0, 1_000_000))
    group_quotas: Mapping[str, str] = option(
        {},
        "Quotas in place of these for each member of a Unix group; the first that fits counts.",
        accept=QUOTA_BY_GROUP,
    )
    group_totals: Mapping[str, str] = option(
        {}, "Quotas of all members of a Unix group together.", accept=QUOTA_BY_GROUP
    )
    redistribute: Literal["off", "group", "elastic"] = option(
        "off",
        'The share of a group\'s member that has left, at the next start of the others. "group": it is dealt '
        'to them. "elastic": interactive members first, batch takes the rest.',
    )
    inherit_seconds: float = option(
        30.0, "A member without a process for this long has gone, until it starts again.", accept=POSITIVE
    )
    move_cost_seconds: float = option(
        5.0,
        'For "elastic": how long a client\'s work stands still when it starts anew.',
        accept=NOT_NEGATIVE,
        needs_restart=True,
    )


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The scheduler's socket, mpsd.sock (docs/protocol.md)."""

    max_connections: int = option(
        512,
        "Most connections at once. An eighth is kept for operators, an eighth for users without a connection.",
        accept=between(1, 65536),
    )
    max_per_user: int = option(64, "Most connections of one user.", accept=between(1, 65536))
    max_queued_events: int = option(
        1024, "Events kept for a subscriber that does not read; then it gets the number of lost ones.", accept=between(1, 65536)
    )
    idle_seconds: float = option(
        300.0, "A silent connection without a subscription is closed after this long.", accept=POSITIVE
    )


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Numbers for Prometheus, and a health check, over HTTP (docs/monitoring.md)."""

    listen: str = option(
        "",
        'Where: "127.0.0.1:9402", "[::1]:9402", "unix:/run/mpsd/metrics.sock". "": nowhere.',
        accept=or_empty(LISTEN),
        needs_restart=True,
    )
    max_connections: int = option(
        32,
        "Most connections at once; then the oldest of the user, or machine, with most makes way.",
        accept=between(1, 1024),
        needs_restart=True,
    )
    token_file: str = option(
        "",
        "A file of mode 0600 with a token; who gives it to the live page sees all that an operator sees. Without it the page "
        'shows the facts that every user may read, and only at a loopback address or a Unix socket. "": no token.',
        accept=or_empty(absolute_path(4095)),
        needs_restart=True,
    )


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """How mpsd sees faults, blames culprits, and reacts (docs/faults.md)."""

    uvm_events: Literal["on", "off"] = option(
        "on", "Attach the UVM driver's event queue to each client: it names the culprit of an MMU fault.", needs_restart=True
    )
    shield: Literal["off", "low", "wide"] = option(
        "low",
        "Lay sparse memory at low addresses in each client, so that an access near null is harmless and is not reported. "
        '"low": 64 KiB to 4 MiB. "wide": to 1 GiB, where the process has no mapping. "off": nowhere.',
        needs_restart=True,
    )
    hold: Literal["on", "off"] = option(
        "on", "Keep a client's GPU context beyond the end of its process, so that a kill does not harm its co-runners.",
        needs_restart=True,
    )  # fmt: skip
    hold_seconds: float = option(
        2.0,
        "How long, at most, if it did not end by itself and others share its domain. Its GPU memory is not free until then.",
        accept=NOT_NEGATIVE,
        needs_restart=True,
    )
    kernel_log_seconds: float = option(
        0.00025,
        "How often mpsd reads the kernel log while a service has a standby that could take over: a reader that waits to be "
        "woken learns of a fault some 3 ms later, if the console is a serial line. It costs 3.4 % of a CPU core in that time "
        "(16 cores beside an H200; 5 to 7 % on two virtual ones). 0: never.",
        accept=INTERVAL,
        needs_restart=True,
    )
    nvml_events: Literal["on", "off"] = option("on", "Take Xid events from NVML.", needs_restart=True)
    core_dumps: Literal["on", "off"] = option(
        "on",
        "Read the CUDA core dumps of clients that were started to write them (`mpsctl env --core-dumps`) to PIPE_DIR/cores. As "
        "root not below /run, unless a file system of its own is mounted there (docs/faults.md).",
        needs_restart=True,
    )
    kmod: str = option(
        "/dev/mpsd-fault",
        'The fault channel of the patched nvidia-uvm, where it is loaded. "": not looked for.',
        accept=or_empty(absolute_path(4095)),
        needs_restart=True,
    )
    kmod_policy: Literal["off", "report", "contain", "contain-and-kill"] = option(
        "contain",
        'What the patched nvidia-uvm does about memory faults, of all processes of the machine. "off": as if not patched. '
        '"report": the same, and reports them. "contain": no other client is hurt, and mpsd freezes and ends the culprit, '
        'for any value of culprit. "contain-and-kill": the module ends it. It has never run on a real GPU.',
    )
    culprit: Literal["leave", "end"] = option(
        "end", 'What mpsd does with a proven culprit. "end": it kills the process after culprit_seconds.'
    )
    culprit_seconds: float = option(
        5.0, "How long the culprit may clean up after its error.", accept=NOT_NEGATIVE
    )
    quarantine: Literal["on", "off"] = option(
        "on", "Give a culprit a separate domain for a while, and place suspects apart."
    )
    quarantine_seconds: float = option(
        3600.0, "For how long; doubled with each time it is proven again.", accept=POSITIVE
    )
    suspect_seconds: float = option(1800.0, "How long a suspicion lasts without another fault.", accept=POSITIVE)
    groups: int = option(2, "Into how many groups suspects are divided, each in a separate domain.", accept=between(2, 8))
    crash_faults: int = option(
        3, "So many proven faults within crash_seconds make a crash loop: each new start then waits.", accept=between(1, 1000)
    )
    crash_seconds: float = option(600.0, "See crash_faults.", accept=POSITIVE)
    crash_pause_max: float = option(
        300.0, "The longest pause before a start; the first is 1 s, each next twice as long. 0: no pauses.", accept=NOT_NEGATIVE
    )
    recycle_seconds: float = option(
        30.0,
        "A domain that has been in FAULT for so long, with clients that do not end, is restarted without them. 0: never.",
        accept=NOT_NEGATIVE,
    )
    drain_on_device_fault: Literal["on", "off"] = option(
        "on", "Admit no client to a GPU after a fault of the GPU itself that only a reset or a repair ends."
    )
    kept: int = option(10000, "Incidents that are kept.", accept=between(10, 1000000), needs_restart=True)


@dataclass(frozen=True, slots=True)
class StopOptions:
    """What happens to running clients when mpsd is stopped."""

    on_sigterm: Literal["drain", "quit", "leave"] = option(
        "drain",
        '"drain": admit no client, give clients drain_seconds, then end them and the domains. "quit": end them at once. '
        '"leave": exit and leave clients and domains running, for the next mpsd to adopt.',
    )
    drain_seconds: float = option(20.0, "How long clients may finish when draining.", accept=NOT_NEGATIVE)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of clients without other limits, until a set_default_... command changes them."""

    default_active_thread_percentage: float = option(100.0, "Share of the SMs.", accept=PERCENT, needs_restart=True)
    default_device_pinned_mem_limit: Mapping[str, str] = option(
        {}, "GPU memory by device.", accept=MEMORY_BY_DEVICE, needs_restart=True
    )
    default_client_priority: int = option(0, "0: normal. 1: below normal.", accept=between(0, 1), needs_restart=True)


@dataclass(frozen=True, slots=True)
class Config:
    """All options, checked."""

    backend: Literal["gpu", "sim"] = option(
        "gpu",
        '"gpu": the real driver. "sim": the simulator, for trying and testing; never chosen automatically.',
        needs_restart=True,
        environ="MPSD_BACKEND",
    )
    pipe_directory: str = option(
        "/tmp/nvidia-mps",
        "Where clients find the daemon.",
        accept=absolute_path(PIPE_DIRECTORY_BYTES),
        needs_restart=True,
        environ="CUDA_MPS_PIPE_DIRECTORY",
    )
    log_directory: str = option(
        "/var/log/nvidia-mps",
        "control.log, server.log and mpsd.log.",
        accept=absolute_path(4000),
        needs_restart=True,
        environ="CUDA_MPS_LOG_DIRECTORY",
    )
    state_directory: str = option(
        "",
        "mpsd's own state: domains, store, keeper. Empty: /run/mpsd/HASH for root, otherwise $XDG_RUNTIME_DIR/mpsd/HASH or "
        "/tmp/mpsd-UID/HASH, with a hash of the pipe directory's file system and its path there.",
        accept=or_empty(absolute_path(STATE_DIRECTORY_BYTES)),
        needs_restart=True,
    )
    visible_devices: str = option(
        "all",
        "The GPUs that are served, in CUDA's order.",
        accept=DEVICES,
        needs_restart=True,
        environ="CUDA_VISIBLE_DEVICES",
    )
    nice: int = option(
        -10,
        "The nice value of mpsd itself, if it may set it and was started with 0; programs that it starts get 0. 0: unchanged.",
        accept=between(-20, 0),
        needs_restart=True,
    )
    vendor: VendorOptions = section(VendorOptions)
    domains: DomainOptions = section(DomainOptions)
    relay: RelayOptions = section(RelayOptions)
    ui: UiOptions = section(UiOptions)
    admission: AdmissionOptions = section(AdmissionOptions)
    api: ApiOptions = section(ApiOptions)
    metrics: MetricsOptions = section(MetricsOptions)
    faults: FaultOptions = section(FaultOptions)
    vault: VaultOptions = section(VaultOptions)
    services: ServiceOptions = section(ServiceOptions)
    sentinel: SentinelOptions = section(SentinelOptions)
    stop: StopOptions = section(StopOptions)
    limits: LimitOptions = section(LimitOptions)
    log: LogOptions = section(LogOptions)


OPTIONS: Mapping[str, Option] = {each.key: each for each in schema.walk(Config)}
