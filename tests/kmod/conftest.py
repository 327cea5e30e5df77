"""The suite of the kernel module: one root, one build and one boot of each distribution, made when a test first asks.

Its tests run only where they are asked for by name, `-m kmod`: they download, compile and emulate for minutes.
"""

from pathlib import Path

import pytest

from tests.kmod.building import Build, build_in
from tests.kmod.distributions import DISTRIBUTIONS, Distribution, Root, Unavailable, root_of
from tests.kmod.machine import Boot, boot

HERE = Path(__file__).resolve().parent
collect_ignore = ["guest"]  # those run in the guest
MATRIX = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kmod: builds the kernel module and runs it in virtual machines; run with -m kmod")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.kmod)
    if "kmod" not in config.option.markexpr:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "distribution" in metafunc.fixturenames:
        ids = [each.name for each in DISTRIBUTIONS]
        metafunc.parametrize("distribution", DISTRIBUTIONS, ids=ids, scope="session")


@pytest.fixture(scope="session")
def root(distribution: Distribution) -> Root:
    try:
        return root_of(distribution)
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def build(root: Root) -> Build:
    return build_in(root)


@pytest.fixture(scope="session")
def booted(root: Root, build: Build, request: pytest.FixtureRequest) -> Boot:
    """Everything that the guest had to say; it is off again."""
    found = boot(root, build)
    matrix = request.config.stash.setdefault(MATRIX, {})
    matrix[root.distribution.name] = row(build, found)
    return found


def row(build: Build, found: Boot) -> str:
    outcomes = [each.outcome for each in found.results.values()]
    passed = f"{outcomes.count('passed')} of {len(outcomes)} guest tests passed"
    times = f"build {build.seconds:.0f} s, boot to first result {found.first_seconds:.0f} s, boot to end {found.seconds:.0f} s"
    lines = [f"kernel {build.kernel}, driver {build.driver}: {build.calls} calls applied, built, {passed}; {times}"]
    lines += [f"    {name}: {found.facts[name]}" for name in ("record", "event") if name in found.facts]
    return "\n".join(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if matrix := config.stash.get(MATRIX, {}):
        terminalreporter.section("kernel module")
        for name, text in matrix.items():
            terminalreporter.line(f"{name}: {text}")
