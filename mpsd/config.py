"""Every option of mpsd, once: name, type, default, what is accepted, help; and how a configuration is put together.

Later wins: default, file, environment, command line.  All mistakes are reported at once.  How options are declared and
checked is in schema.py, how they are shown to people in config_text.py.  Prose: docs/configuration.md, generated from here.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mpsd import schema
from mpsd.accept import (
    DEVICES,
    GROUP,
    MEMORY_BY_DEVICE,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    ROTATION_BYTES,
    SOCKET_PATH_BYTES,
    absolute_path,
    between,
    or_empty,
)
from mpsd.errors import BadConfiguration
from mpsd.schema import Option, Problem, option, section

DEFAULT_FILE = "/etc/mpsd/mpsd.toml"
MOST_BYTES = 1 << 20  # of a file; somebody may point at a device
PIPE_DIRECTORY_BYTES = SOCKET_PATH_BYTES - len("/control_privileged")
STATE_DIRECTORY_BYTES = SOCKET_PATH_BYTES - len("/domains/0123456789abcdef/pipe/control_privileged")


@dataclass(frozen=True, slots=True)
class Vendor:
    """The vendor's control program, and how long it may take."""

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
class Domains:
    """Fault domains: how many, how full, how long."""

    spares: int = option(1, "Hot spares kept ready per GPU set, started and without clients.", accept=between(0, 8))
    max_domains: int = option(8, "Most fault domains per GPU set, spares included.", accept=between(1, 64))
    clients_per_server: int = option(
        48,
        "Clients one vendor server takes before the next domain is used. 48 for driver 580; 60 from 590.",
        accept=between(1, 1024),
    )
    per_gpu: Literal["auto", "never"] = option(
        "auto",
        '"auto": domains of their own for each GPU, where clients can be told apart by the GPUs they see. '
        '"never": every domain has all GPUs.',
        needs_restart=True,
    )
    idle_seconds: float = option(300.0, "A domain without clients for this long is recycled.", accept=POSITIVE)
    poll_seconds: float = option(60.0, "How often each vendor daemon is asked for its servers and clients.", accept=POSITIVE)
    restart_seconds: float = option(0.5, "First wait before a dead vendor daemon is restarted; doubles.", accept=POSITIVE)
    restart_max_seconds: float = option(30.0, "Longest wait before a dead vendor daemon is restarted.", accept=POSITIVE)


@dataclass(frozen=True, slots=True)
class Relay:
    """Clients on their way to a domain."""

    max_connections: int = option(
        4096,
        "Most connections held at once; further clients wait in the kernel's queue.",
        accept=between(1, 65536),
        needs_restart=True,
    )
    turn_seconds: float = option(
        0.5,
        "How long a client may stay silent while a vendor daemon waits for its word; then the daemon is freed for others, "
        "and the client is linked again when it speaks.",
        accept=POSITIVE,
        needs_restart=True,
    )
    silent_seconds: float = option(
        10.0,
        "Where max_connections is reached, a connection that has said nothing for this long makes room for others.",
        accept=POSITIVE,
        needs_restart=True,
    )


@dataclass(frozen=True, slots=True)
class Ui:
    """Command sessions: the front end without arguments, and whoever pipes commands into it."""

    max_sessions: int = option(
        256, "Most command sessions at once; then the one that is idle longest makes way.", accept=between(1, 65536)
    )
    admin_group: str = option("", 'Members may change limits and end clients, as root may. "": no group.', accept=GROUP)
    idle_seconds: float = option(300.0, "A session that says nothing for this long is closed.", accept=POSITIVE)


@dataclass(frozen=True, slots=True)
class Stop:
    """What happens to running clients when mpsd is told to stop."""

    on_sigterm: Literal["drain", "quit", "leave"] = option(
        "drain",
        '"drain": admit nobody, give clients drain_seconds, then end them and the domains. "quit": end them at once. '
        '"leave": exit and leave clients and domains running, for the next mpsd to adopt.',
    )
    drain_seconds: float = option(20.0, "How long clients may finish when draining.", accept=NOT_NEGATIVE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client gets when nobody said otherwise, until a set_default_... command changes it."""

    default_active_thread_percentage: float = option(100.0, "Share of the SMs.", accept=PERCENT, needs_restart=True)
    default_device_pinned_mem_limit: Mapping[str, str] = option(
        {}, "GPU memory by device.", accept=MEMORY_BY_DEVICE, needs_restart=True
    )
    default_client_priority: int = option(0, "0: normal. 1: below normal.", accept=between(0, 1), needs_restart=True)


@dataclass(frozen=True, slots=True)
class Log:
    """mpsd's own log: standard error in the foreground, mpsd.log in the log directory otherwise."""

    level: Literal["debug", "info", "warning", "error"] = option("info", "The least important events that are written.")
    format: Literal["auto", "human", "json"] = option(
        "auto", '"auto": human on a terminal, JSON otherwise.', needs_restart=True
    )
    max_bytes: int = option(
        67108864,
        "mpsd.log is renamed to mpsd.log.1 when it reaches this. 0: never.",
        accept=ROTATION_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All options, checked."""

    backend: Literal["gpu", "sim"] = option(
        "gpu",
        '"gpu": the real driver. "sim": the simulator, for trying and testing; never chosen by itself.',
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
        "/tmp/mpsd-UID/HASH, with a hash of the pipe directory.",
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
    vendor: Vendor = section(Vendor)
    domains: Domains = section(Domains)
    relay: Relay = section(Relay)
    ui: Ui = section(Ui)
    stop: Stop = section(Stop)
    limits: Limits = section(Limits)
    log: Log = section(Log)


OPTIONS: Mapping[str, Option] = {each.key: each for each in schema.walk(Config)}


class ConfigError(BadConfiguration):
    """Everything that is wrong with a configuration; the message has a line for each problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the command line of `serve` said; kept, so that a reload can put the configuration together again."""

    foreground: bool = True
    multiuser_server: bool = False
    static_partitioning: bool = False
    ready_devices: bool = False
    ready_fd: int | None = None  # answered once by runtime/notify.py
    config_file: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)  # option key -> value

    def load(self, environ: Mapping[str, str]) -> Config:
        """Read the file again.  Raises ConfigError."""
        return load(self.config_file, environ, self.overrides)


def load(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration from defaults, file, environment and `overrides`; raises ConfigError with everything wrong.

    Without a path: $MPSD_CONFIG, else /etc/mpsd/mpsd.toml, which alone may be absent.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for source, key, value in _layers(path, environ, overrides or {}, problems):
        problem = schema.check(source, key, value, OPTIONS)
        if problem is None:
            values[key] = value
        else:
            problems.append(problem)
    config: Config = schema.build(Config, values)
    if not problems:
        problems.extend(_contradictions(config))
    if problems:
        raise ConfigError(problems)
    return config


def changed(old: Config, new: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that differ: those a reload can change, and those that need a restart."""
    differing = [key for key in OPTIONS if schema.value_at(old, key) != schema.value_at(new, key)]
    live = tuple(key for key in differing if not OPTIONS[key].needs_restart)
    return live, tuple(key for key in differing if OPTIONS[key].needs_restart)


def file_used(path: str | None, environ: Mapping[str, str]) -> str:
    """The file that `load` would read."""
    return path or environ.get("MPSD_CONFIG") or DEFAULT_FILE


def _layers(
    path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any], problems: list[Problem]
) -> Iterator[tuple[str, str, Any]]:
    """(source, key, value) of every layer over the defaults, weakest first; files that cannot be read go to `problems`."""
    source = file_used(path, environ)
    try:
        with open(source, "rb") as file:
            table = tomllib.loads(file.read(MOST_BYTES).decode())
    except FileNotFoundError:
        table = {}
        if path or environ.get("MPSD_CONFIG"):
            problems.append(Problem(source, "", "no such file"))
    except OSError as exc:
        table = {}
        problems.append(Problem(source, "", f"cannot be read: {exc.strerror}"))
    except (ValueError, RecursionError) as exc:
        table = {}
        problems.append(Problem(source, "", f"is not TOML: {exc}"))
    for key, value in schema.flatten(table, Config):
        yield source, key, value
    for each in OPTIONS.values():
        text = environ.get(each.environ) if each.environ else None
        if text is not None and (text or each.environ == "CUDA_VISIBLE_DEVICES"):  # "" there means: no device
            yield f"environment variable {each.environ}", each.key, schema.parse_word(text, each.kind)
    for key, value in overrides.items():
        yield "command line", key, value


def _contradictions(config: Config) -> Iterator[Problem]:
    """Values that are good each and bad together."""
    domains = config.domains
    if domains.spares >= domains.max_domains:
        message = f"found {domains.spares}; accepted: less than domains.max_domains, which is {domains.max_domains}"
        yield Problem("configuration", "domains.spares", message)
    if domains.restart_seconds > domains.restart_max_seconds:
        most = domains.restart_max_seconds
        message = f"found {domains.restart_seconds}; accepted: at most domains.restart_max_seconds, which is {most}"
        yield Problem("configuration", "domains.restart_seconds", message)
    if config.state_directory == config.pipe_directory:
        yield Problem("configuration", "state_directory", "found the pipe directory; accepted: a directory of its own")
