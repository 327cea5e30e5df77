"""Which descriptors this process has, and how many."""

import gc
import os
from contextlib import suppress

from mpsd.host import processes


def _settle() -> None:
    """Close those of earlier tests that only wait for the garbage collector, and start the readers, which have three each."""
    gc.collect()
    for each in (processes.reader, processes.searcher, processes.cgroup_reader):
        with suppress(OSError):
            each.stat(os.getpid())


def descriptors() -> int:
    _settle()
    return len(os.listdir("/proc/self/fd"))


def opened() -> set[str]:
    """Return number and file of each, where those of earlier tests may be closed meanwhile."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def copies(of: int) -> int:
    """Return how many other descriptors this process has of files with the name of this one."""
    file = os.readlink(f"/proc/self/fd/{of}")
    return sum(each.endswith(f" {file}") for each in opened()) - 1
