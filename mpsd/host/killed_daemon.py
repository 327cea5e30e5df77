"""Wait until all is closed that a killed mpsd had open, and abort the file servers for which its process waits.

    main thread, trio's threads    mpsd's own table of descriptors: open until the last of them has ended
    bare threads                   a table without those descriptors (host/bare_threads.py): they may stay

A user's file server (FUSE) can keep any of them from ending, also after SIGKILL, and so the process.  Prose: docs/vault.md,
"Fencing"; decision 048.
"""

import errno
import os
from collections.abc import Callable

import structlog
import trio

from mpsd.host import file_servers, processes
from mpsd.host.bare_threads import BARE_NAME
from mpsd.host.draining import STUCK_SECONDS
from mpsd.host.polling import is_readable
from mpsd.host.process_exit import wait_ended
from mpsd.host.process_reader import MOST_THREADS
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()


async def wait_closed(daemon: ProcessId, share_of: Callable[[int], int]) -> None:
    """Return when the process of an mpsd has ended, or has only bare threads left.

    share_of: of a uid (UidRanges.share_of).
    """
    is_told = False
    while True:
        with trio.move_on_after(STUCK_SECONDS):
            await wait_ended(daemon)
            return
        names = await run_in_thread(_left_threads, daemon)
        if names is None:  # it serves, or its state is not known
            continue
        if all(name == BARE_NAME for name in names):
            return
        aborted = await run_in_thread(_abort, names, share_of)
        if aborted or not is_told:
            log.warning("daemon.unfinished", pid=daemon.pid, threads=len(names), aborted_file_servers=aborted)
        is_told = True


def _left_threads(daemon: ProcessId) -> list[str] | None:
    """Return the names of the threads of a killed mpsd that have not ended; None if it was not killed, or that is not known."""
    try:
        if (pidfd := processes.open_pidfd(daemon)) is None:
            return []
    except OSError:
        return None
    try:
        names = thread_names(daemon.pid) if processes.has_thread_ended(daemon.pid) else None
        return [] if is_readable(pidfd) else names  # if it has ended by now, the names may be another process's
    except OSError:
        return None
    finally:
        os.close(pidfd)


def thread_names(pid: int) -> list[str]:
    """Return the names of those threads of a process that have not ended.  Raises OSError if that is not known."""
    threads = processes.reader.threads(pid)
    if len(threads) == MOST_THREADS:
        raise OSError(errno.E2BIG, "it has too many threads to list")
    names = [processes.command(each) for each in threads if not processes.has_thread_ended(each)]
    if processes.reader.threads(pid) != threads:  # one has ended since: the kernel may have left out those after it
        raise OSError(errno.EAGAIN, "its threads are ending")
    return names


def _abort(names: list[str], share_of: Callable[[int], int]) -> int:
    """Abort the silent file servers of the users for whom threads with these names close descriptors; return how many."""
    shares = {share for share in map(file_servers.named, names) if share is not None}
    return sum(file_servers.abort(share, share_of) for share in shares)
