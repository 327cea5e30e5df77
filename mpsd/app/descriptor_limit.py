"""The resource limits of mpsd's own process."""

import fcntl
import os
import resource
from contextlib import suppress
from dataclasses import replace

import structlog

from mpsd.config.options import Config
from mpsd.errors import BadConfiguration
from mpsd.host.descriptors import SPARE_DESCRIPTORS
from mpsd.host.rules.descriptor_budget import BESIDE, OF_A_CLIENT, OF_A_CONNECTION, Budget, budget, refusal

log = structlog.get_logger()


def fit_descriptors(config: Config, holders: int) -> tuple[Config, Budget]:
    """Return the configuration with as many connections as the descriptors allow, and the number of clients that they allow.

    holders: descriptors that the vault and services need.  Raises BadConfiguration if too few are left to serve any client.
    """
    wanted = config.relay.max_connections
    limit = raise_descriptor_limit(wanted * (OF_A_CONNECTION + OF_A_CLIENT) + BESIDE + holders)
    if why := refusal(limit):
        raise BadConfiguration(why)
    found = budget(limit, wanted)
    if found.clients < wanted:
        log.warning("limits.budget", may_open=limit, connections=found.connections, clients=found.clients, wanted=wanted)
    return replace(config, relay=replace(config.relay, max_connections=found.connections)), found


def fit_again(config: Config) -> Config:
    """Return a reloaded configuration with as many connections as this process's descriptors allow."""
    found = budget(resource.getrlimit(resource.RLIMIT_NOFILE)[0], config.relay.max_connections)
    return replace(config, relay=replace(config.relay, max_connections=found.connections))


def raise_descriptor_limit(wanted: int) -> int:
    """Let this process open `wanted` descriptors without a wait, or as many as it may; a warning is logged if those are fewer.

    A few more are permitted and left unused, for reading /proc when all others are in use.  Returns the number it may open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, wanted)
    for limit in (max(hard, most + SPARE_DESCRIPTORS), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit - SPARE_DESCRIPTORS, most), limit))
            break
        except (ValueError, OSError):
            continue
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now + SPARE_DESCRIPTORS < wanted:
        log.warning("limits.descriptors", wanted=wanted, found=now, effect="fewer connections can be held at once")
    _make_table(min(wanted, now))
    return now


def _make_table(size: int) -> None:
    """Grow the kernel's table of this process's descriptors, which never shrinks.

    While the table of a process with threads grows, a thread that opens a descriptor stops for 10 ms (measured): accept(2) too,
    whose connection is lost if mpsd is killed then.
    """
    with suppress(OSError), open(os.devnull, "rb") as null:
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, size - 1))
