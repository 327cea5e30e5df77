"""A step that keeps the event loop is reported; one that only had no processor is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
import trio

from mpsd.health.loop_watch import BlockedStep, Clocks, LoopWatch, _Suspect, judge

MS = 1_000_000
SPIN = "import os\nwhile os.getppid() == {parent}: pass"


@pytest.mark.parametrize(
    ("busy_ms", "delay_ms", "step_ms", "expected"),
    [
        pytest.param(0, 0, 50, None, id="at the limit"),
        pytest.param(0, 0, 51, BlockedStep(51, 0), id="asleep in a system call"),
        pytest.param(60, 0, 60, BlockedStep(60, 60), id="computing"),
        pytest.param(10, 0, 90, BlockedStep(90, 10), id="both"),
        pytest.param(10, 5000, 5010, None, id="ready, without a processor"),
        pytest.param(0, 100, 200, BlockedStep(100, 0), id="asleep, and then without a processor"),
        pytest.param(400, 0, 60, BlockedStep(60, 60), id="the turn computed before this step, too"),
    ],
)
def test_what_counts_as_blocked(busy_ms: int, delay_ms: int, step_ms: int, expected: BlockedStep | None) -> None:
    after = Clocks(step_ms * MS, busy_ms * MS, delay_ms * MS)
    assert judge(Clocks(0, 0, 0), after, step_ms * MS) == expected


class Reports(list[tuple[str, BlockedStep]]):
    def __call__(self, task: str, blocked: BlockedStep) -> None:
        self.append((task, blocked))


@pytest.fixture
def reports() -> Reports:
    return Reports()


@contextmanager
def watching(reports: Reports) -> Iterator[LoopWatch]:
    watch = LoopWatch(reports)
    trio.lowlevel.add_instrument(watch)
    yield watch
    trio.lowlevel.remove_instrument(watch)
    watch.close()


async def sleeps() -> None:
    time.sleep(0.08)  # noqa: ASYNC251 what is to be found


async def computes() -> None:
    until = time.thread_time() + 0.08
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize("blocks", [sleeps, computes])
async def test_the_task_that_blocks_is_named(reports: Reports, blocks) -> None:
    with watching(reports):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
            nursery.start_soon(blocks)
    [(name, blocked)] = [each for each in reports if blocks.__name__ in each[0]]
    assert blocked.blocked_ms >= 75
    assert (blocked.busy_ms >= 75) is (blocks is computes), (name, blocked)


async def test_a_step_that_gets_no_processor_is_not_reported(reports: Reports) -> None:
    """Five processes that compute on the one processor that this thread may use: it waits long, and computes little."""
    [processor, *_] = was = os.sched_getaffinity(0)
    command = [sys.executable, "-S", "-c", SPIN.format(parent=os.getpid())]
    os.sched_setaffinity(0, {processor})
    spinning = [subprocess.Popen(command) for _ in range(5)]  # noqa: ASYNC220
    try:
        with watching(reports) as watch:
            before = watch._read()
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(computes_a_little)
            delay_ns = watch._read().delay_ns - before.delay_ns
    finally:
        os.sched_setaffinity(0, was)
        for each in spinning:
            each.send_signal(signal.SIGKILL)
            each.wait()
    assert delay_ns > 50 * MS, "the processes did not keep this thread from the processor: nothing was shown"
    assert not [each for each in reports if "computes_a_little" in each[0]]


async def computes_a_little() -> None:
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass


STOPPED = """
import time
import trio
from mpsd.health.loop_watch import LoopWatch

async def main():
    async with trio.open_nursery() as nursery:
        print("ready", flush=True)
        nursery.start_soon(trio.to_thread.run_sync, input)
        for _ in range(4):
            nursery.start_soon(use_threads, nursery)
        while len(nursery.child_tasks) > 4:
            for _ in range(1000):
                pass
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

async def use_threads(nursery):
    while True:
        await trio.to_thread.run_sync(time.sleep, 0.001)

watch = LoopWatch(lambda task, blocked: print(blocked.blocked_ms, blocked.busy_ms))
trio.run(main, instruments=[watch])
watch.close()
"""


def test_a_step_that_was_stopped_is_not_reported() -> None:
    """Other threads may take SIGCONT in place of the loop's."""
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
        for _ in range(30):
            time.sleep(0.005)
            program.send_signal(signal.SIGSTOP)
            time.sleep(0.08)
            program.send_signal(signal.SIGCONT)
        reported = [line.split() for line in program.communicate("\n", 30)[0].splitlines()]
    assert [busy_ms for _, busy_ms in reported if int(busy_ms) < 10] == []


async def test_a_log_is_not_flooded() -> None:
    watch = LoopWatch()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            watch._write_log("a task", BlockedStep(60, 1))
        watch._quiet_until = 0.0
        watch._write_log("a task", BlockedStep(70, 2))
    watch.close()
    assert [(line["event"], line["ms"], line["more_before"]) for line in lines] == [
        ("loop.blocked", 60, 0),
        ("loop.blocked", 70, 2),
    ]


@pytest.mark.parametrize(("continued_ms", "is_reported"), [(999, True), (1_050, False), (1_100, False), (9_000, True)])
async def test_a_stop_long_after_a_step_hides_nothing(reports: Reports, continued_ms: int, is_reported: bool) -> None:
    watch = LoopWatch(reports)
    watch._suspects.append(_Suspect("a task", BlockedStep(60, 1), 1_000 * MS, 1_060 * MS))
    watch._continued_ns.append(continued_ms * MS)
    watch.close()
    assert bool(reports) is is_reported
