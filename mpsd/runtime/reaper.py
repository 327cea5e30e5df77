"""Collecting the ends of vendor daemons.

They daemonise, so they belong to init; where init does not collect (many containers), `ps` goes on showing them as
`[nvidia-cuda-mps] <defunct>`, which Slurm takes for a daemon that did not quit.  mpsd makes itself their reaper (prctl(2),
PR_SET_CHILD_SUBREAPER).  Somebody waits for mpsd's own children, so those must be left alone: each of them leads a session of
its own, as the daemons do, which vendor.py collects by their pids; whatever else became our child is an orphan.  A daemon
that died at its start has no pid that anybody knows: it is collected once it was seen dead twice, which no child is that
somebody waits for.
"""

import ctypes
import os
import threading

from mpsd import processes

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Orphans among our descendants become our children from now on.  False where the kernel will not."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_orphans() -> int:
    """Collect those that have ended; how many.  Never blocks."""
    return sum(processes.collect(pid) for pid in _children() if _is_orphaned_zombie(pid))


class Reaper:
    """Guards that nobody's status is taken from whoever waits for it."""

    def __init__(self) -> None:
        self._dead: set[int] = set()

    def look(self) -> int:
        """Collect orphans, and whoever was dead at the last look too; how many.  Never blocks."""
        collected = reap_orphans()
        dead = {pid for pid in _children() if _status(pid)[0] == b"Z"}
        collected += sum(processes.collect(pid) for pid in dead & self._dead)
        self._dead = dead - self._dead
        return collected


def reap_all() -> int:
    """Collect whatever has ended, when nobody waits for anything any more; how many.  Never blocks."""
    return sum(processes.collect(pid) for pid in _children() if _status(pid)[0] == b"Z")


def _children() -> list[int]:
    """Empty where the kernel does not tell (CONFIG_PROC_CHILDREN)."""
    thread = threading.main_thread().native_id
    try:
        with open(f"/proc/self/task/{thread}/children") as children:
            return [int(word) for word in children.read().split()]
    except OSError:
        return []


def _is_orphaned_zombie(pid: int) -> bool:
    state, session = _status(pid)
    return state == b"Z" and session not in (pid, os.getsid(0))


def _status(pid: int) -> tuple[bytes, int]:
    """State and session, proc(5); of one that has gone, X."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return b"X", 0
    state, _, _, session = text[text.rfind(b")") + 2 :].split()[:4]
    return state, int(session)
