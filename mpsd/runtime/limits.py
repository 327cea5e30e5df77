"""This process's own resource limits."""

import fcntl
import os
import resource
from contextlib import suppress

import structlog

log = structlog.get_logger()


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process open `wanted` descriptors, or as many as it may, without a wait; says so when that is fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        _raise(hard, wanted)
    _make_table(min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _raise(hard: int, wanted: int) -> None:
    for limit in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, wanted), limit))
            break
        except (ValueError, OSError):
            continue
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now < wanted:
        log.warning("limits.descriptors", wanted=wanted, found=now, effect="fewer connections can be held at once")


def _make_table(size: int) -> None:
    """The kernel's table of our descriptors, which never shrinks.  While that of a process with threads grows, whoever opens
    one stands still for 10 ms (measured): accept(2) too, whose connection is lost then if mpsd is killed meanwhile."""
    with suppress(OSError), open(os.devnull, "rb") as null:
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, size - 1))
