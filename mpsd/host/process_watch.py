"""Report the ends of processes: each once, as soon as its pidfd is readable."""

import os
import signal
import time
from collections.abc import Callable

import structlog
import trio

from mpsd.errors import BadRequest, TooMany
from mpsd.host import processes
from mpsd.host.polling import until_ended
from mpsd.model.process import ProcessId

log = structlog.get_logger()
MOST = 8192  # each needs a descriptor
OnEnd = Callable[[ProcessId, int], None]  # the process, and when its end was seen, of CLOCK_MONOTONIC


class ProcessWatch:
    """Guards that each process is watched once, and that a signal reaches no later process with its pid."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._pidfds: dict[ProcessId, int] = {}
        self._nursery: trio.Nursery | None = None

    def watch(self, process: ProcessId) -> None:
        """Watch a process.  Raises BadRequest if it has ended, TooMany."""
        if process in self._pidfds:
            return
        if len(self._pidfds) >= MOST or self._nursery is None:
            raise TooMany(f"{MOST} processes are members of services, and no more may be")
        try:
            pidfd = processes.open_pidfd(process)
        except OSError as exc:
            raise TooMany(f"the end of pid {process.pid} cannot be watched: {exc.strerror}") from None
        if pidfd is None:
            raise BadRequest(f"pid {process.pid} has ended")
        self._pidfds[process] = pidfd
        self._nursery.start_soon(self._wait, process, pidfd)

    def kill(self, process: ProcessId) -> bool:
        """Send SIGKILL.  Returns whether it was sent, or the process had already ended."""
        pidfd = self._pidfds.get(process)
        try:
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

    async def _wait(self, process: ProcessId, pidfd: int) -> None:
        try:
            await until_ended(pidfd)  # for ever: as long as the process lives
            seen_ns = time.monotonic_ns()
        finally:
            os.close(pidfd)
            del self._pidfds[process]
        self._on_end(process, seen_ns)
