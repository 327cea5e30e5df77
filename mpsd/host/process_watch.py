"""Report the ends of processes: each once, as soon as its pidfd is readable."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from errno import EPERM

import structlog
import trio

from mpsd.errors import BadRequest, TooMany
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import processes
from mpsd.host.ownership import ANOTHERS, is_anothers
from mpsd.host.polling import until_ended
from mpsd.model.process import ProcessId

log = structlog.get_logger()
MOST = 8192  # each needs a descriptor
MOST_OF_USER = 2048  # so that one user cannot keep the others out: a process is watched to its end, also after it has left
_ROOT = 0
OnEnd = Callable[[ProcessId, int], None]  # the process, and when its end was seen, of CLOCK_MONOTONIC


class ProcessWatch:
    """Guards that each process is watched once, that a signal reaches no later process with its pid, and each user's share.

    ranges: whose uids count as one user.
    """

    def __init__(self, on_end: OnEnd, ranges: UidRanges = NO_RANGES) -> None:
        self._on_end, self._share_of = on_end, ranges.share_of
        self._pidfds: dict[ProcessId, int] = {}
        self._uids: dict[ProcessId, int] = {}  # when it connected last
        self._count: Counter[int] = Counter()  # of processes, by the uid that they count against
        self._nursery: trio.Nursery | None = None

    def watch(self, process: ProcessId, uid: int) -> None:
        """Watch a process, for its user.  Raises BadRequest if it has ended, TooMany.

        uid: when it connected: the process may run another user's program by now.
        """
        if process in self._pidfds:
            self._uids[process] = uid
            return
        share = self._check_room(uid or processes.charged_uid(process.pid))
        try:
            pidfd = processes.open_pidfd(process)
        except OSError as exc:
            raise TooMany(f"the end of pid {process.pid} cannot be watched: {exc.strerror}") from None
        if pidfd is None:
            raise BadRequest(f"pid {process.pid} has ended")
        self._pidfds[process], self._uids[process] = pidfd, uid
        self._count[share] += 1
        assert self._nursery is not None, "there was room"
        self._nursery.start_soon(self._wait, process, pidfd, share)

    def _check_room(self, uid: int) -> int:
        """Return the uid of the share that a process of this user counts against.  Raises TooMany."""
        share, total = self._share_of(uid), len(self._pidfds)
        if total >= MOST or self._nursery is None:
            raise TooMany(f"{MOST} processes are members of services, and no more may be")
        own = self._count[share]
        if kept := hindrance_of_slots(MOST, own, total, uid == _ROOT, "members of services"):
            raise TooMany(kept)
        if uid != _ROOT and own >= MOST_OF_USER:
            raise TooMany(f"{MOST_OF_USER} processes of user {share} are or were members of services: no more until one ends")
        return share

    def uid_of(self, process: ProcessId) -> int | None:
        """Return the uid with which a watched process connected; None if it is not watched."""
        return self._uids.get(process)

    def kill(self, process: ProcessId) -> bool:
        """Send SIGKILL, unless the process runs another user's program.  Returns whether it was sent, or has already ended."""
        pidfd = self._pidfds.get(process)
        try:
            if pidfd is not None and is_anothers(process, self._uids[process]):
                raise PermissionError(EPERM, ANOTHERS)
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except OSError as exc:
            log.error("service.not_killed", pid=process.pid, why=exc.strerror)
            return False
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _wait(self, process: ProcessId, pidfd: int, share: int) -> None:
        try:
            await until_ended(pidfd)  # for ever: as long as the process lives
            seen_ns = time.monotonic_ns()
        finally:
            os.close(pidfd)
            del self._pidfds[process], self._uids[process]
            self._count[share] -= 1
            if not self._count[share]:
                del self._count[share]
        self._on_end(process, seen_ns)
