"""The suite of the kernel module: one root, one build and one boot of each case, made ahead of the tests that ask.

Its tests run only where they are asked for by name, `-m kmod`: they download, compile and emulate for minutes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kmod.building import Build
from tests.kmod.cases import CASES, Case
from tests.kmod.distributions import Root, Unavailable
from tests.kmod.machine import Boot
from tests.kmod.table import Row, render
from tests.kmod.works import Works

HERE = Path(__file__).resolve().parent
collect_ignore = ["guest"]  # those run in the guest
TABLE = pytest.StashKey[dict[str, Row]]()


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py looks for the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kmod)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[each.name for each in CASES], scope="session")


@pytest.fixture(scope="session")
def works(request: pytest.FixtureRequest) -> Iterator[Works]:
    selected = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    made = Works([each for each in dict.fromkeys(selected) if each is not None])
    request.config.stash[TABLE] = made.rows
    yield made
    made.close()


@pytest.fixture(scope="session")
def built(works: Works, case: Case) -> tuple[Root, Build]:
    try:
        return works.build(case)
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def root(built: tuple[Root, Build]) -> Root:
    return built[0]


@pytest.fixture(scope="session")
def build(built: tuple[Root, Build]) -> Build:
    return built[1]


@pytest.fixture(scope="session")
def booted(works: Works, case: Case, build: Build) -> Boot:
    """Return all output of the guest; it is powered off by then."""
    return works.boot(case)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if table := config.stash.get(TABLE, {}):
        terminalreporter.section("kernel module")
        for line in render(table):
            terminalreporter.line(line)
