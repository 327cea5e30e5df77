"""This process's own resource limits."""

import fcntl
import os
import resource
from contextlib import suppress

import structlog

from mpsd.processes import SPARE_DESCRIPTORS

log = structlog.get_logger()


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process open `wanted` descriptors, or as many as it may, without a wait; says so when that is fewer.

    A few more are allowed and left unused, for reading /proc when all others are in use.
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


def _make_table(size: int) -> None:
    """The kernel's table of our descriptors, which never shrinks.  While that of a process with threads grows, whoever opens
    one stands still for 10 ms (measured): accept(2) too, whose connection is lost then if mpsd is killed meanwhile."""
    with suppress(OSError), open(os.devnull, "rb") as null:
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, size - 1))
