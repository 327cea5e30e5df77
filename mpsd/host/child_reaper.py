"""Reap vendor daemons.

They daemonise, so they become children of init; if init does not reap (many containers), `ps` still shows them as
`[nvidia-cuda-mps] <defunct>`, which Slurm takes for a daemon that did not quit.  mpsd makes itself their reaper (prctl(2),
PR_SET_CHILD_SUBREAPER).  It leaves its own children alone, since other code waits for them: each leads its own session, as the
daemons do, which vendor_control.py reaps by their pids.  Any other child is an orphan.  A daemon that died at its start has an
unknown pid: it is reaped once two looks have found it dead, since no child that other code waits for stays dead so long.
"""

import os
import threading

from mpsd.host import processes
from mpsd.native import lib


def become_reaper() -> bool:
    """Make orphaned descendants this process's children from now on.  False if the kernel refuses."""
    return bool(lib.prctl(lib.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_orphans() -> int:
    """Reap the orphans that have ended; return their number.  Never blocks."""
    return sum(processes.collect(pid) for pid in filter(_is_dead, _children()) if _is_orphan(pid))


class Reaper:
    """Guards that a child's status is not taken from the code that waits for it."""

    def __init__(self) -> None:
        self._dead: set[int] = set()

    def look(self) -> int:
        """Reap orphans, and children that were dead at the last look too; return their number.  Never blocks."""
        collected = reap_orphans()
        dead = set(filter(_is_dead, _children()))
        collected += sum(processes.collect(pid) for pid in dead & self._dead)
        self._dead = dead - self._dead
        return collected


def reap_all() -> int:
    """Reap all children that have ended, when no code waits for one any more; return their number.  Never blocks."""
    return sum(processes.collect(pid) for pid in filter(_is_dead, _children()))


def _children() -> list[int]:
    """Return the pids of the children; empty if the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    thread = threading.main_thread().native_id
    try:
        with open(f"/proc/self/task/{thread}/children") as children:
            return [int(word) for word in children.read().split()]
    except OSError:
        return []


def _is_dead(pid: int) -> bool:
    return processes.state(pid) == "Z"  # if that is not known, the next look finds it


def _is_orphan(pid: int) -> bool:
    try:
        return os.getsid(pid) not in (pid, os.getsid(0))
    except ProcessLookupError:
        return False
