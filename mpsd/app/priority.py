"""The priority of mpsd's event loop on the processors.

Answers must not queue behind the computation of the users that they are about.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger()


def raise_priority(nice: int) -> None:
    """Set the nice value of this thread, the event loop's, unless mpsd was started with another one than 0.

    Threads and processes that it starts get 0 (sched(7), SCHED_RESET_ON_FORK): vendor daemons and hooks run as before.
    """
    thread = threading.get_native_id()
    if nice == 0 or os.getpriority(os.PRIO_PROCESS, thread) or os.sched_getscheduler(thread) != os.SCHED_OTHER:
        return
    try:
        os.sched_setscheduler(thread, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        _raise_session(nice)
    except OSError as exc:
        log.info("priority.unchanged", wanted=nice, why=exc.strerror)  # without CAP_SYS_NICE


def _raise_session(nice: int) -> None:
    """Do the same for the session, if no shell leads it.  Raises OSError.

    Where the kernel groups processes by session (sched(7), autogroup), nice values count only within one.  Vendor daemons and
    the keeper have sessions of their own.
    """
    leader = os.getsid(0)
    if leader == os.getpid() or not _lives(leader):
        with suppress(FileNotFoundError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _lives(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
