"""The programs under test, built as they are shipped and with sanitizers; a keeper that runs; small things that many need."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.machine import FRONT_END, Machine, open_machine
from tests.native.c_client_fixtures import begin_sessions, built_drive, name_of_the_test  # noqa: F401
from tests.native.fake_daemon import fake_environment, installed  # noqa: F401
from tests.native.keeper_client import KeeperClient, RunningKeeper
from tests.native.ui_daemon import Run

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_MS = 400  # of the keepers under test, instead of five seconds
BUILDS = {"plain": "SAN=", "sanitized": "SAN=address,undefined"}  # set in full, since a make around us may have set SAN too


def build(directory: str, out: Path, build_name: str, define: str) -> Path:
    """`make` in a directory of the project, into a place of our own; the program."""
    arguments = [f"OUT={out}", f"CPPFLAGS_EXTRA=-D{define}", "MPSD_PYTHON_DEFAULT=/nowhere/python3", BUILDS[build_name]]
    subprocess.run(["make", "-s", "-C", ROOT / directory, *arguments], check=True)
    return out


@pytest.fixture(scope="session", params=list(BUILDS))
def keeper_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("keeper") / "mpsd-keeper"
    return build("native/keeper", out, request.param, f"MPSD_KEEPER_PATIENCE_MS={PATIENCE_MS}")


@pytest.fixture(scope="session", params=list(BUILDS))
def front_end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The front end; its waits of 60, 10 and 600 seconds take one, two and one."""
    out = tmp_path_factory.mktemp("front-end") / "nvidia-cuda-mps-control"
    return build("clients/control", out, request.param, "MPSD_WAIT_SECONDS=1 -DMPSD_EXIT_SECONDS=2 -DMPSD_END_SECONDS=1")


@pytest.fixture
def run(front_end: Path, short_dir: Path) -> Run:
    """Run the front end with only the pipe directory in its environment."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[bytes]":
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(short_dir), **environment}
        result = subprocess.run(
            [front_end, *arguments], input=stdin, env=variables, capture_output=True, timeout=20, check=False
        )
        assert b"Sanitizer" not in result.stderr, result.stderr.decode()
        return result

    return run


@pytest.fixture
def keeper(keeper_program: Path, short_dir: Path) -> Iterator[RunningKeeper]:
    with RunningKeeper(keeper_program, short_dir / "keeper") as running:
        yield running
        assert running.process.poll() in (None, 0), "the keeper crashed"


@pytest.fixture
def client(keeper: RunningKeeper) -> Iterator[KeeperClient]:
    with keeper.client() as made:
        yield made


@pytest.fixture(scope="package")
def vault_machine() -> Iterator[Machine]:
    """A machine with mpsd for all tests of the C client, each with separate arenas, since starting it takes most of the
    time."""
    assert FRONT_END.exists(), "run: make build"
    with open_machine() as made:
        made.configure('[vault]\neviction = "unheld"\n')
        made.start()
        yield made


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait for an event of another process under a deadline."""

    def wait(holds: Callable[[], bool]) -> None:
        until = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < until, "it did not come to hold"
            time.sleep(0.002)

    return wait
