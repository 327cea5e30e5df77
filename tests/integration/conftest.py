"""Machines to try the daemon on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.host import Host, build_front_end, open_host, why_not
from tests.integration.machine import FRONT_END, ROOT, SIMULATOR, Machine, open_machine


@pytest.fixture(scope="session")
def programs() -> None:
    """The C programs: mpsd's must have been built, the test clients are built here."""
    missing = [str(path) for path in (FRONT_END, SIMULATOR / "lib/libcuda.so.1") if not path.exists()]
    assert not missing, f"not there: {', '.join(missing)}; run: make build"
    subprocess.run(["make", "-s", "-C", ROOT / "tests/clients"], check=True)


@pytest.fixture
def machine(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        yield made


@pytest.fixture(scope="session")
def installed_front_end(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_front_end(tmp_path_factory.mktemp("front-end"))


@pytest.fixture
def host(installed_front_end: Path) -> Iterator[Host]:
    """A machine with mpsd installed, as callers know it; skipped with the reason where there are no namespaces to be had."""
    if why := why_not():
        pytest.skip(why)
    with open_host(installed_front_end) as made:
        if made.trouble:
            pytest.skip(f"no namespaces of our own: {made.trouble}")
        yield made
