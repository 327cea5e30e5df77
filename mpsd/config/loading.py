"""Build the configuration from its layers; options.py has the options.

Later wins: default, file, environment, command line.  All mistakes are reported at once.  schema.py declares and checks
options, help_text.py shows them to people.  Prose: docs/configuration.md.
"""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from mpsd.config import schema
from mpsd.config.options import OPTIONS, Config
from mpsd.config.schema import Problem
from mpsd.errors import BadConfiguration

DEFAULT_FILE = "/etc/mpsd/mpsd.toml"
MOST_BYTES = 1 << 20  # of a file; the path may lead to a device


class ConfigError(BadConfiguration):
    """All errors of a configuration; the message has a line for each problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class Invocation(Struct, frozen=True):
    """The arguments of `serve`; kept, so that a reload can build the configuration again."""

    foreground: bool = True
    multiuser_server: bool = False
    static_partitioning: bool = False
    ready_devices: bool = False
    ready_fd: int | None = None  # answered once by app/readiness.py
    config_file: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)  # option key -> value

    def load(self, environ: Mapping[str, str]) -> Config:
        """Read the file again.  Raises ConfigError."""
        return load(self.config_file, environ, self.overrides)


def load(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration from defaults, file, environment and `overrides`; raise ConfigError with all problems.

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
    """Return the keys that differ: those that a reload can change, and those that need a restart."""
    differing = [key for key in OPTIONS if schema.value_at(old, key) != schema.value_at(new, key)]
    live = tuple(key for key in differing if not OPTIONS[key].needs_restart)
    return live, tuple(key for key in differing if OPTIONS[key].needs_restart)


def file_used(path: str | None, environ: Mapping[str, str]) -> str:
    """Return the path of the file that `load` would read."""
    return path or environ.get("MPSD_CONFIG") or DEFAULT_FILE


def _layers(
    path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any], problems: list[Problem]
) -> Iterator[tuple[str, str, Any]]:
    """Yield (source, key, value) of every layer over the defaults, weakest first.  Problems of the file go to `problems`."""
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
    """Yield problems of values that are valid each, but not together."""
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
