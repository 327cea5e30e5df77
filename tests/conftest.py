"""The async runner, deadlines, markers, and the fixtures that everybody needs."""

import functools
import gc
import inspect
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
import trio
import trio.testing

from tests.seeds import HOW_TO_REPEAT, RUN_SEED

DEADLINE_SECONDS = 30.0
CANCEL = pytest.StashKey[Callable[[], None]]()  # cancels an async test that runs

hypothesis.settings.register_profile(
    "mpsd",
    deadline=None,  # a busy machine is no failure; the test's own deadline applies
    derandomize=False,  # hypothesis' own default changes where the environment has CI
    database=None,  # a red run is repeated by its seed (tests/seeds.py)
    max_examples=int(os.environ.get("MPSD_TEST_EXAMPLES", "50")),
)
hypothesis.settings.load_profile("mpsd")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before hypothesis reads its own option."""
    # A shell starts what it runs in the background with Ctrl-C ignored, and programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(RUN_SEED)


def pytest_report_header() -> str:
    return f"random tests: {HOW_TO_REPEAT}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections.append(("random tests", HOW_TO_REPEAT))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def test_...` under trio; a fixture that is a trio clock becomes the clock of the run."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    clocks = [each for each in arguments.values() if isinstance(each, trio.abc.Clock)]
    trio.run(_run_test, pyfuncitem, arguments, clock=clocks[0] if clocks else None)
    return True


async def _run_test(pyfuncitem: pytest.Function, arguments: dict[str, Any]) -> None:
    """Run the test, which its deadline cancels: an error raised amid trio's own code would break the tests that follow."""
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        pyfuncitem.stash[CANCEL] = functools.partial(token.run_sync_soon, scope.cancel)
        await pyfuncitem.obj(**arguments)
    if scope.cancelled_caught:
        raise TimeoutError("the test's deadline cancelled it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """No test may hang: real seconds, independent of the test's clock."""
    marker = item.get_closest_marker("deadline")
    seconds = marker.args[0] if marker else DEADLINE_SECONDS * (10 if item.get_closest_marker("slow") else 1)

    def give_up(number: int, frame: FrameType | None) -> None:
        if (cancel := item.stash.get(CANCEL, None)) is not None:
            del item.stash[CANCEL]
            cancel()
            return
        raise TimeoutError(f"the test took longer than its {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)  # and again: a test may swallow the first one, or a cancellation
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_collection_finish() -> None:
    keep()


def keep() -> None:
    """What is there now stays: tests that collect garbage need not go through all modules, tests and reports each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            keep()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What this machine cannot show is skipped, with the reason.  Some suites are run only by name, as `-m kmod`."""
    for suite in ("kmod", "engines"):
        if suite not in config.option.markexpr:
            others = {item for item in items if item.get_closest_marker(suite)}
            config.hook.pytest_deselected(items=list(others))
            items[:] = [item for item in items if item not in others]
    lacking = {}
    if not os.path.exists("/dev/nvidiactl"):
        lacking["gpu"] = pytest.mark.skip(reason="no NVIDIA GPU here (/dev/nvidiactl)")
    if os.geteuid() != 0:
        lacking["root"] = pytest.mark.skip(reason="needs uid 0")
    for item in items:
        for name, skip in lacking.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the databases that a test leaves open, as tests of a `kill -9` do: Python 3.13 warns of them."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*args: Any, **more: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **more))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    yield
    for each in opened:
        each.close()


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """Time that stands still until the test moves it."""
    return trio.testing.MockClock()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Time that jumps to the next deadline when everybody waits."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A temporary directory with a short name, which all users may enter: socket paths end at 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    kill_those_of(made)
    shutil.rmtree(made, ignore_errors=True)


def kill_those_of(directory: Path) -> None:
    """Daemons, servers and keepers that a failed test left behind: those with `directory` in their environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if os.fsencode(directory) in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass  # gone, or another user's
