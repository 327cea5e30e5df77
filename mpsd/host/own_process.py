"""Identify the calling process without the readers: a user can keep them from all processes of mpsd's user."""

import os

from mpsd.host.process_stat import parse_stat
from mpsd.model.process import ProcessId


def own_id() -> ProcessId:
    """Return the calling process.  Raises OSError without /proc."""
    with open("/proc/self/stat", "rb") as file:
        stat = parse_stat(file.read())
    assert stat is not None, "a process that reads its own stat has not ended"
    return ProcessId(os.getpid(), stat.start_time)
