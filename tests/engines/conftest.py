"""The suites of schedulers and packages: run by name, `-m engines`, since they need programs that not every machine has."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.slurm import Cluster, missing
from tests.integration.conftest import installed_front_end, programs  # noqa: F401  (fixtures)
from tests.integration.host import open_host, why_not
from tests.integration.machine import ROOT

REAPS = "while {patient}/sleep 1; do :; done"  # a shell that waits reaps every child: Slurm waits until a job has no process
HERE = Path(__file__).resolve().parent
# Read when grpc is imported.  With its handlers a fork beside a thread in gRPC ended the child: `user` of subprocess forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py looks for the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if not item.get_closest_marker("deadline"):
                item.add_marker(pytest.mark.deadline(180))


@pytest.fixture(scope="module")
def cluster(installed_front_end: Path) -> Iterator[Cluster]:  # noqa: F811
    """Yield a cluster of two nodes; skip with the reason if it cannot be made."""
    if why := why_not() or missing():
        pytest.skip(why)
    with open_host(installed_front_end, first=REAPS) as host:
        if host.trouble:
            pytest.skip(f"no namespaces of our own: {host.trouble}")
        made = Cluster(host)
        made.start()
        yield made


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with what `make dist` builds."""
    place = tmp_path_factory.mktemp("dist")
    done = subprocess.run(["make", "dist", f"DIST={place}"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return place


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails leaves no job and no settings to the next one."""
    yield
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        cluster.cancel_all()
        cluster.configure()
