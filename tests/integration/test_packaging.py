"""Installation, removal and the systemd unit, each in a place of its own."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mpsd.probes import CAPABILITIES

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "clients/systemd/mpsd.service"
PROGRAM = "nvidia-cuda-mps-control"
VENDOR = b"#!/bin/sh\necho the vendor's\n"


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, timeout=300, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root to install below, with a vendor's program and a dpkg of its own."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / PROGRAM).write_bytes(VENDOR)
    (tmp_path / "bin" / PROGRAM).chmod(0o755)
    (tmp_path / "dpkg").mkdir()
    (tmp_path / "dpkg" / "diversions").touch()
    return tmp_path


def make(place: Path, target: str, divert: str) -> None:
    places = {"PREFIX": "opt", "BINDIR": "bin", "SYSCONFDIR": "etc", "UNITDIR": "units", "MANDIR": "man"}
    settings = [f"{name}={place / folder}" for name, folder in places.items()]
    done = run("make", target, *settings, f"DIVERT={divert}", cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("with_dpkg", [True, False], ids=["dpkg", "no dpkg"])
def test_the_vendors_program_makes_way_and_comes_back(place: Path, with_dpkg: bool) -> None:
    """Twice, because an upgrade installs over itself and must not move mpsd's own program aside."""
    if with_dpkg and not shutil.which("dpkg-divert"):
        pytest.skip("no dpkg-divert here")
    divert = f"dpkg-divert --admindir {place / 'dpkg'}" if with_dpkg else ""
    ours, vendors = place / "bin" / PROGRAM, place / "bin" / f"{PROGRAM}.vendor"
    for _ in range(2):
        make(place, "install", divert)
        assert vendors.read_bytes() == VENDOR
        assert b"mpsd-front-end" in ours.read_bytes()
    assert (PROGRAM in (place / "dpkg/diversions").read_text()) is with_dpkg

    done = run(str(place / "opt/venv/bin/mpsd"), "config", "--config", str(place / "etc/mpsd/mpsd.toml"), env={})
    assert done.returncode == 0, done.stderr
    assert (place / "opt/venv/lib/mpsd/keeper/mpsd-keeper").exists()
    done = run(str(place / "opt/venv/bin/python3"), "-I", "-c", "import mpsd.native, mpsd_client._native", env={}, cwd="/")
    assert done.returncode == 0, done.stderr
    done = run(str(place / "bin/mpsctl"), "--socket", str(place / "no.sock"), "status", env={}, cwd="/")
    assert (done.returncode, done.stderr) == (3, f"mpsctl status: no mpsd at {place}/no.sock: No such file or directory\n")
    assert (place / "man/man1/mpsctl.1").exists()

    (place / "etc/mpsd/mpsd.toml").write_text("# mine\n")
    make(place, "install", divert)
    assert (place / "etc/mpsd/mpsd.toml").read_text() == "# mine\n"

    make(place, "uninstall", divert)
    assert ours.read_bytes() == VENDOR
    assert not vendors.exists()
    assert not (place / "opt").exists()
    assert not [*(place / "man").rglob("mpsctl*"), *(place / "bin").glob("mpsctl")]
    assert sorted(path.name for path in (place / "etc").rglob("*") if path.is_file()) == ["mpsd", "mpsd.toml"]


@pytest.mark.slow
def test_the_installed_daemon_starts_from_an_empty_environment(place: Path, short_dir: Path) -> None:
    """As the Kubernetes plugin starts it: two variables, no PATH.  mpsd is found without any help."""
    make(place, "install", "")
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(short_dir), "CUDA_MPS_LOG_DIRECTORY": str(short_dir), "MPSD_BACKEND": "gpux"}
    done = run(str(place / "bin" / PROGRAM), "-d", env=environ, cwd="/")
    assert done.returncode == 1
    assert 'backend: found "gpux"' in done.stdout


def test_systemd_takes_the_unit_without_complaint(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here; apt-get install systemd")
    unit = tmp_path / "mpsd.service"
    unit.write_text(re.sub(r"/usr/bin/nvidia-\S+", shutil.which("true") or "/bin/true", UNIT.read_text()))
    done = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_every_line_of_the_unit_that_hardens_is_explained() -> None:
    """An operator who meets a refusal finds out which line, and what it is for."""
    explained = (ROOT / "docs/install.md").read_text()
    settings = [line.partition("=") for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line)]
    service = settings[[name for name, _, _ in settings].index("KillMode") :]
    assert not [name for name, _, _ in service if name != "WantedBy" and f"`{name}" not in explained]
    capabilities = {word for name, _, value in service if name == "CapabilityBoundingSet" for word in value.split()}
    assert not [name for name in capabilities if f"`{name}`" not in explained]


def test_the_check_asks_for_no_capability_that_the_unit_withholds() -> None:
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    granted = {name for line in lines for name in line.split()}
    assert set(CAPABILITIES) <= granted


def test_the_ci_and_the_needs_are_good_shell() -> None:
    for script in (".ci/run", ".ci/needs", "tests/check"):
        done = run("bash", "-n", str(ROOT / script))
        assert (done.returncode, done.stderr) == (0, "")
        assert os.access(ROOT / script, os.X_OK)


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    """A fresh machine: the message is the command to type."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    done = run(str(ROOT / ".ci/needs"), env={"PATH": str(tmp_path), "PYTHON": "python3"})
    assert done.returncode == 1
    assert re.search(r"^    apt-get install gcc.* procps python3$", done.stderr, re.MULTILINE)
