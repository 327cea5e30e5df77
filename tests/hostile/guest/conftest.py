"""Runs in the guest: reports on the second serial line, a deadline for each test, and the kernel's FUSE."""

import functools
import inspect
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import trio
from telling import tell

DEADLINE_SECONDS = 120.0  # of one test; the emulation is some twenty times slower than a machine
DEVICE = Path("/dev/fuse")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporter())
    if not DEVICE.exists():
        subprocess.run(["modprobe", "-d", os.environ["MPSD_GUEST_KERNEL"], "fuse"], check=True)
    DEVICE.chmod(0o666)  # as udev's rules do


def pytest_sessionstart() -> None:
    tell(fact="kernel", value=platform.release())


class Reporter:
    """Tells the host what each call came to, and what went wrong before and after it."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        function = report.nodeid.rpartition("::")[2]
        text = "" if report.outcome == "passed" else f"{report.nodeid} ({report.when}):\n{report.longreprtext[-6000:]}"
        tell(name=function, outcome=report.outcome, seconds=round(report.duration, 3), text=text)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(functools.partial(pyfuncitem.obj, **arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took longer than its {seconds} seconds")

    marker = item.get_closest_marker("deadline")
    seconds = marker.args[0] if marker else DEADLINE_SECONDS
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
