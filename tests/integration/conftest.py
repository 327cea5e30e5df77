"""Machines to try the daemon on."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cgroup import open_cgroup
from tests.integration.host import Host, build_front_end, open_host, why_not
from tests.integration.machine import FRONT_END, ROOT, SIMULATOR, UIDS, Machine, open_machine


@pytest.fixture(scope="session")
def programs() -> None:
    """The C programs: mpsd's must have been built, the test clients are built here."""
    missing = [str(path) for path in (FRONT_END, SIMULATOR / "lib/libcuda.so.1") if not path.exists()]
    assert not missing, f"not there: {', '.join(missing)}; run: make build"
    subprocess.run(["make", "-s", "-j2", "-C", ROOT / "tests/clients"], check=True)


@pytest.fixture
def machine(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        yield made


@pytest.fixture(scope="module")
def started(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.start()
        yield made


@pytest.fixture
def shared(started: Machine) -> Iterator[Machine]:
    """A machine with mpsd for those tests of a file that leave it as they found it: most of their time was its start."""
    yield started
    started.end_children()


@pytest.fixture(scope="session")
def strangers_python() -> Iterator[Path]:
    """An interpreter that a user without rights can run, with what mpsd needs."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = next(filter(_is_strangers_too, (f"/usr/bin/{name}", f"{sys.base_prefix}/bin/{name}")), None)
    packages = Path(sysconfig.get_path("purelib"))
    if base is None or not all(each.stat().st_mode & 0o005 for each in (*packages.parents, ROOT, *ROOT.parents)):
        pytest.skip("no Python of this version, or no way to it, for another user")
    venv = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True, capture_output=True)
    venv.chmod(0o755)
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "mpsd.pth").write_text(f"{packages}\n{ROOT}\n")
    yield venv / "bin/python"
    shutil.rmtree(venv)


def _is_strangers_too(python: str) -> bool:
    """Run it as a user without rights: its libraries may lie where only root reads, as below /root."""
    try:
        done = subprocess.run([python, "-c", ""], user=UIDS[0], group=UIDS[0], extra_groups=[], cwd="/", capture_output=True)
    except OSError:  # it is not there, or this is not root, whose tests these are
        return False
    return done.returncode == 0


@pytest.fixture
def strangers(programs: None, strangers_python: Path) -> Iterator[Machine]:
    """A machine where mpsd is an ordinary user's."""
    with open_strangers(strangers_python) as made:
        yield made


@pytest.fixture(scope="module")
def shared_strangers(programs: None, strangers_python: Path) -> Iterator[Machine]:
    """One with mpsd, for those tests of a file that leave it as they found it."""
    with open_strangers(strangers_python) as made:
        made.start()
        yield made


@contextmanager
def open_strangers(python: Path) -> Iterator[Machine]:
    with open_machine(UIDS[0] if os.geteuid() == 0 else os.geteuid()) as made:
        made.variables["MPSD_PYTHON"] = str(python)
        yield made


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with open_cgroup() as made:
        yield made


@pytest.fixture(scope="session")
def installed_front_end(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_front_end(tmp_path_factory.mktemp("front-end"))


@pytest.fixture
def host(installed_front_end: Path) -> Iterator[Host]:
    """Yield a machine with mpsd installed as callers expect it; skip with the reason if namespaces cannot be made."""
    if why := why_not():
        pytest.skip(why)
    with open_host(installed_front_end) as made:
        if made.trouble:
            pytest.skip(f"no namespaces of our own: {made.trouble}")
        yield made
