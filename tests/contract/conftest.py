"""The control programs that can be tried on this machine."""

from collections.abc import Iterator

import pytest

from tests.contract.programs import Daemon, Program, open_place, programs


@pytest.fixture(scope="module", params=programs(), ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    """Skipped with the reason where it is not there."""
    program: Program = request.param
    if why := program.missing():
        pytest.skip(f"{program.name}: {why}")
    return program


@pytest.fixture(scope="module")
def standing(program: Program) -> Iterator[Daemon]:
    """A daemon for those tests of a file that change nothing."""
    with open_place(program) as daemon:
        assert daemon.start().status == 0
        yield daemon


@pytest.fixture
def daemon(program: Program) -> Iterator[Daemon]:
    with open_place(program) as daemon:
        assert daemon.start().status == 0
        yield daemon
