"""Runs in the guest: the kernel's log, the module loaded, devices and made-up GPUs.  guest_run.py has the rest."""

from collections.abc import Iterator
from pathlib import Path

import modules
import pytest
from device import Device, Mode
from fake_gpu import FakeGpu, VaSpace
from kernel_log import KernelLog
from telling import tell


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the daemon's test last: it takes the longest, and says the least about the kernel."""
    items.sort(key=lambda item: item.path.stem == "test_daemon")


def pytest_sessionfinish() -> None:
    """Tell whether lockdep, where the kernel has it, still looked at the end (its first complaint stops it), and of KASAN."""
    lockdep = Path("/proc/lockdep_stats")
    if lockdep.exists():
        (state,) = [line.split()[-1] for line in lockdep.read_text().splitlines() if line.strip().startswith("debug_locks")]
        tell(fact="debug_locks", value=state)
    if " kasan_report\n" in Path("/proc/kallsyms").read_text():
        tell(fact="kasan", value="on")


@pytest.fixture(autouse=True)
def kernel_log() -> Iterator[KernelLog]:
    """Check that the kernel reports no error during any test."""
    log = KernelLog()
    yield log
    complaints = log.complaints()
    log.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture(scope="module")
def loaded() -> Iterator[None]:
    """Load the module with the self test, from the first test of a file to the last; then no process may hold it."""
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
