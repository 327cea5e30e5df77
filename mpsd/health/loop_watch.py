"""Reports each step of a task that blocked the event loop for too long.

A step is charged with the time in which the loop's thread slept in a system call or computed.  The time in which it was ready
to run and had no processor does not count (run delay, the second number of /proc/PID/task/TID/schedstat): a busy machine raises
no alarm.  Nor does the time for which mpsd was stopped by a signal.  Prose: docs/operating.md, "When mpsd itself stands still".
"""

import os
import signal
import threading
import time
from collections.abc import Callable

import structlog
import trio
from msgspec import Struct

log = structlog.get_logger()
LONGEST_SECONDS = 0.05  # 20 such steps a second would still leave each caller an answer within 0.1 s
_QUIET_SECONDS = 1.0  # between two reports: a slow disk must not fill the log
_MS_NS = 1_000_000


class Clocks(Struct, frozen=True):
    """Readings at one moment, in ns: the clock, the processor time of the thread, and its run delay."""

    wall_ns: int
    busy_ns: int
    delay_ns: int


class BlockedStep(Struct, frozen=True):
    """How long a step blocked the loop, and for how much of that its thread computed; the rest it slept."""

    blocked_ms: int
    busy_ms: int


def judge(before: Clocks, after: Clocks, step_ns: int) -> BlockedStep | None:
    """Return how a step blocked the loop, or None if it was short enough.

    The clocks are read before the first step of a turn of the loop and after this one: `step_ns` is this step's share of the
    turn.  Run delay and processor time of the whole turn are charged to the step, so that its share is never overstated.
    """
    blocked_ns = step_ns - (after.delay_ns - before.delay_ns)
    if blocked_ns <= LONGEST_SECONDS * 1e9:
        return None
    busy_ns = min(after.busy_ns - before.busy_ns, blocked_ns)
    return BlockedStep(blocked_ns // _MS_NS, busy_ns // _MS_NS)


class LoopWatch(trio.abc.Instrument):
    """Measures each step of the thread that creates it.  Guards one descriptor, of the thread's schedstat.

    Costs two readings of the clock for each step, and one of schedstat for each turn of the loop.  Raises OSError if the kernel
    records no run delay (no CONFIG_SCHED_INFO).
    """

    def __init__(self, report: Callable[[trio.lowlevel.Task, BlockedStep], None] | None = None) -> None:
        self._report = self._write_log if report is None else report
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._quiet_until = 0.0
        self._unreported = 0
        self._turn = self._read()
        self._step_began_ns = self._turn.wall_ns
        self._before = signal.signal(signal.SIGCONT, self._note_continued)

    def _note_continued(self, number: int, frame: object) -> None:
        """Restart the step's time; runs in the loop's thread, in the middle of a step that SIGSTOP has interrupted."""
        self._step_began_ns = time.monotonic_ns()

    def after_io_wait(self, timeout: float) -> None:
        self._turn = self._read()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began_ns = time.monotonic_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        step_ns = time.monotonic_ns() - self._step_began_ns
        if step_ns > LONGEST_SECONDS * 1e9 and (blocked := judge(self._turn, self._read(), step_ns)):
            self._report(task, blocked)

    def close(self) -> None:
        signal.signal(signal.SIGCONT, self._before)
        os.close(self._schedstat)

    def _read(self) -> Clocks:
        delay_ns = int(os.pread(self._schedstat, 64, 0).split()[1])
        return Clocks(time.monotonic_ns(), time.thread_time_ns(), delay_ns)

    def _write_log(self, task: trio.lowlevel.Task, blocked: BlockedStep) -> None:
        now = time.monotonic()
        if now < self._quiet_until:
            self._unreported += 1
            return
        self._quiet_until, more = now + _QUIET_SECONDS, self._unreported
        self._unreported = 0
        log.warning("loop.blocked", task=task.name, ms=blocked.blocked_ms, busy_ms=blocked.busy_ms, more_before=more)
