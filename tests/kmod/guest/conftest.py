"""Runs in the guest: reports on the second serial line, deadlines, the kernel's log, the async runner, the module loaded."""

import functools
import inspect
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import modules
import pytest
import trio
from device import Device, Mode
from fake_gpu import FakeGpu, VaSpace
from kernel_log import KernelLog
from telling import tell

DEADLINE_SECONDS = 60.0  # of one test; the emulation is some twenty times slower than a machine


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporter())


def pytest_sessionstart() -> None:
    tell(fact="kernel", value=platform.release())
    tell(fact="booted_seconds", value=Path("/proc/uptime").read_text().split()[0])


def pytest_sessionfinish() -> None:
    """Whether lockdep, where the kernel has it, still looked at the end: at its first complaint it stops."""
    lockdep = Path("/proc/lockdep_stats")
    if lockdep.exists():
        (state,) = [line.split()[-1] for line in lockdep.read_text().splitlines() if line.strip().startswith("debug_locks")]
        tell(fact="debug_locks", value=state)


class Reporter:
    """Tells the host what each call came to, and what went wrong before and after it."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
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
    seconds = marker.args[0] if marker else DEADLINE_SECONDS

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took longer than its {seconds} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(autouse=True)
def kernel_log() -> Iterator[KernelLog]:
    """Whatever a test does, the kernel has nothing to complain of."""
    log = KernelLog()
    yield log
    complaints = log.complaints()
    log.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture(scope="module")
def loaded() -> Iterator[None]:
    """The module with the self test, from the first test of a file to the last; then nobody may hold it."""
    modules.load_stand_in()
    modules.load(modules.TEST)
    yield
    modules.unload()


@pytest.fixture
def device(loaded: None) -> Iterator[Device]:
    """One open of /dev/mpsd-fault, at its newest record; the policy is what it was after loading."""
    with Device() as opened:
        opened.set_policy()
        yield opened
        opened.set_policy()


@pytest.fixture
def va_space(loaded: None) -> Iterator[VaSpace]:
    with VaSpace() as opened:
        yield opened


@pytest.fixture
def gpu(device: Device, va_space: VaSpace) -> Iterator[FakeGpu]:
    """A made-up GPU for this process, under a policy that contains faults."""
    device.set_policy(Mode.SINK)
    with FakeGpu(device, va_space) as made:
        yield made
