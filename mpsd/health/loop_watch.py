"""Reports each step of a task that blocked the event loop for too long.

A step is charged with the time in which the loop's thread slept in a system call or computed.  The time in which it was ready
to run and had no processor does not count (run delay, the second number of /proc/PID/task/TID/schedstat): a busy machine raises
no alarm.  Nor does a step in which mpsd was stopped by a signal.  Prose: docs/operating.md, "When mpsd itself stands still".
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
import trio
from msgspec import Struct

log = structlog.get_logger()
LONGEST_SECONDS = 0.05  # 20 such steps a second would still leave each caller an answer within 0.1 s
_QUIET_SECONDS = 1.0  # between two reports: a slow disk must not fill the log
_MS_NS = 1_000_000
_MOST_CONTINUED = 64  # that are remembered
_KEPT_NS = 1_000 * _MS_NS  # any thread may take SIGCONT, and then the step that was stopped can end before the handler runs


class Clocks(Struct, frozen=True):
    """Readings at one moment, in ns: the clock, the processor time of the thread, and its run delay."""

    wall_ns: int
    busy_ns: int
    delay_ns: int


class BlockedStep(Struct, frozen=True):
    """How long a step blocked the loop, and for how much of that its thread computed; the rest it slept."""

    blocked_ms: int
    busy_ms: int


class _Suspect(Struct, frozen=True):
    """A step that is reported once no SIGCONT can belong to it any more; the times are those of the clock, in ns."""

    task: str
    blocked: BlockedStep
    began_ns: int
    ended_ns: int


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

    Costs two readings of the clock for each step, and one of schedstat for each turn of the loop.  Reports a step a second
    later, or at close.  Raises OSError if the kernel records no run delay (no CONFIG_SCHED_INFO).
    """

    def __init__(self, report: Callable[[str, BlockedStep], None] | None = None) -> None:
        self._report = self._write_log if report is None else report
        self._suspects: list[_Suspect] = []  # each blocked the loop for 50 ms: at most 20 a second
        self._continued_ns: deque[int] = deque(maxlen=_MOST_CONTINUED)
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._quiet_until = 0.0
        self._unreported = 0
        self._turn = self._read()
        self._step_began_ns = self._turn.wall_ns
        self._before = signal.signal(signal.SIGCONT, self._note_continued)

    def _note_continued(self, number: int, frame: object) -> None:
        self._continued_ns.append(time.monotonic_ns())

    def after_io_wait(self, timeout: float) -> None:
        self._turn = self._read()
        self._report_until(self._turn.wall_ns - _KEPT_NS)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began_ns = time.monotonic_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        ended_ns = time.monotonic_ns()
        step_ns = ended_ns - self._step_began_ns
        if step_ns > LONGEST_SECONDS * 1e9 and (blocked := judge(self._turn, self._read(), step_ns)):
            self._suspects.append(_Suspect(task.name, blocked, self._step_began_ns, ended_ns))

    def close(self) -> None:
        self._report_until(time.monotonic_ns())
        signal.signal(signal.SIGCONT, self._before)
        os.close(self._schedstat)

    def _report_until(self, ended_ns: int) -> None:
        while self._suspects and self._suspects[0].ended_ns <= ended_ns:
            step = self._suspects.pop(0)
            continued = tuple(self._continued_ns)  # the handler can add to it meanwhile
            if not any(step.began_ns <= each <= step.ended_ns + _KEPT_NS for each in continued):
                self._report(step.task, step.blocked)

    def _read(self) -> Clocks:
        delay_ns = int(os.pread(self._schedstat, 64, 0).split()[1])
        return Clocks(time.monotonic_ns(), time.thread_time_ns(), delay_ns)

    def _write_log(self, task: str, blocked: BlockedStep) -> None:
        now = time.monotonic()
        if now < self._quiet_until:
            self._unreported += 1
            return
        self._quiet_until, more = now + _QUIET_SECONDS, self._unreported
        self._unreported = 0
        log.warning("loop.blocked", task=task, ms=blocked.blocked_ms, busy_ms=blocked.busy_ms, more_before=more)
