"""A plugin for pytest in any guest: reports on the second serial line, a deadline for each test, the async runner."""

import functools
import inspect
import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import trio
from telling import tell

SLOWDOWN = int(os.environ.get("MPSD_GUEST_SLOWDOWN", "1"))  # of the guest's kernel: deadlines are longer by that
DEADLINE_SECONDS = 120.0  # of one test; the emulation is some twenty times slower than a machine


def pytest_sessionstart() -> None:
    tell(fact="kernel", value=platform.release())
    tell(fact="booted_seconds", value=Path("/proc/uptime").read_text().split()[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report the outcome of each call to the host, and each failure before and after it."""
    if report.when != "call" and report.outcome == "passed":
        return
    file, _, function = report.nodeid.rpartition("/")[2].partition("::")
    text = "" if report.outcome == "passed" else f"{report.nodeid} ({report.when}):\n{report.longreprtext[-6000:]}"
    name = f"{file.removesuffix('.py')}::{function.partition('[')[0]}"
    tell(name=name, outcome=report.outcome, seconds=round(report.duration, 3), text=text)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(functools.partial(pyfuncitem.obj, **arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("deadline")
    seconds = SLOWDOWN * (marker.args[0] if marker else DEADLINE_SECONDS)

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took longer than its {seconds} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
