"""The suite of the kernel module: one root, one build and one boot of each case, made ahead of the tests that ask.

Its tests run only where they are asked for by name, `-m kmod`: they download, compile and emulate for minutes.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kmod.building import Build, build_in
from tests.kmod.cases import CASES, Case
from tests.kmod.distributions import Root, Unavailable, root_of
from tests.kmod.machine import Boot, boot
from tests.kmod.table import Row, render, row_of, skipped_row

HERE = Path(__file__).resolve().parent
collect_ignore = ["guest"]  # those run in the guest
TABLE = pytest.StashKey[dict[str, Row]]()
AT_ONCE = 2  # cases that are built and run: one of them compiles while the other waits for its emulated machine


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py looks for the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kmod)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[each.name for each in CASES], scope="session")


class Works:
    """Roots, builds and boots of the cases that were selected, each made once, in the background and in order."""

    def __init__(self, cases: list[Case]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._builds: dict[Case, Future[tuple[Root, Build]]] = {case: Future() for case in cases}
        self._boots = {case: self._pool.submit(self._work, case) for case in cases}

    def build(self, case: Case) -> tuple[Root, Build]:
        return self._builds[case].result()

    def boot(self, case: Case) -> Boot:
        return self._boots[case].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _work(self, case: Case) -> Boot:
        built = self._builds[case]
        try:
            case.check()
            root = root_of(case.distribution)
            made = build_in(root, case)
        except BaseException as exc:
            built.set_exception(exc)
            raise
        built.set_result((root, made))
        return boot(root, made)


@pytest.fixture(scope="session")
def works(request: pytest.FixtureRequest) -> Iterator[Works]:
    selected = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    made = Works([each for each in dict.fromkeys(selected) if each is not None])
    yield made
    made.close()


@pytest.fixture(scope="session")
def built(works: Works, case: Case, request: pytest.FixtureRequest) -> tuple[Root, Build]:
    table = request.config.stash.setdefault(TABLE, {})
    try:
        root, made = works.build(case)
    except Unavailable as exc:
        table[case.name] = skipped_row(case, str(exc))
        pytest.skip(str(exc))
    except AssertionError as exc:
        table[case.name] = skipped_row(case, f"NOT BUILT: {str(exc).splitlines()[0]}")
        raise
    table[case.name] = row_of(made, None)
    return root, made


@pytest.fixture(scope="session")
def root(built: tuple[Root, Build]) -> Root:
    return built[0]


@pytest.fixture(scope="session")
def build(built: tuple[Root, Build]) -> Build:
    return built[1]


@pytest.fixture(scope="session")
def booted(works: Works, case: Case, build: Build, request: pytest.FixtureRequest) -> Boot:
    """Everything that the guest had to say; it is off again."""
    found = works.boot(case)
    request.config.stash[TABLE][case.name] = row_of(build, found)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if table := config.stash.get(TABLE, {}):
        terminalreporter.section("kernel module")
        for line in render(table):
            terminalreporter.line(line)
