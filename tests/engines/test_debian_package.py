"""The Debian package in a clean Debian 12 and 13: built, installed, upgraded and removed, with a client on the simulator."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.debian import INSTALLED_SIMULATOR, VENDOR, build_package, open_debian
from tests.integration.client import Client
from tests.integration.host import Host
from tests.integration.machine import PROGRAM
from tests.integration.process import wait_for
from tests.kmod.distributions import DEBIAN12, DEBIAN13, Distribution, Unavailable, root_of

pytestmark = [pytest.mark.root, pytest.mark.deadline(300)]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MPSD_CONFIG": "/etc/mpsd.toml", "MPSD_SIM_FAST": "1"}
USR_BIN = f"/usr/bin/{PROGRAM}"


@pytest.fixture(scope="module", params=[DEBIAN12, DEBIAN13], ids=lambda each: each.name)
def release(request: pytest.FixtureRequest) -> Distribution:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def root(release: Distribution) -> Path:
    """Return the directory that has the release."""
    if os.geteuid() != 0:
        pytest.skip("needs uid 0")
    try:
        return root_of(release).path
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def packages(release: Distribution, root: Path, dist: Path) -> Path:
    """Return the directory with two versions, mpsd_1.deb and mpsd_2.deb."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg-deb: apt-get install dpkg")
    try:
        built = build_package(root, dist)
    except Unavailable as exc:
        pytest.skip(str(exc))
    place = dist / release.name
    place.mkdir()
    made = built.rename(place / "mpsd_1.deb")
    unpacked = place / "unpacked"
    subprocess.run(["dpkg-deb", "-R", made, unpacked], check=True)
    control = unpacked / "DEBIAN/control"
    control.write_text(control.read_text().replace("-1~debian", "-2~debian"))
    subprocess.run(["dpkg-deb", "-Zgzip", "-b", unpacked, place / "mpsd_2.deb"], check=True, capture_output=True)
    shutil.rmtree(unpacked)
    return place


@pytest.fixture
def debian(programs: None, packages: Path, root: Path) -> Iterator[Host]:
    try:
        with open_debian(root, packages) as made:
            dpkg(made, "-i", "/mnt/dist/mpsd_1.deb")
            yield made
    except Unavailable as exc:
        pytest.skip(str(exc))


def dpkg(debian: Host, *words: str, **variables: str) -> str:
    done = try_dpkg(debian, *words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def try_dpkg(debian: Host, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return debian.run("dpkg", *words, environment={**ENVIRONMENT, **variables}, seconds=120)


def start(debian: Host) -> None:
    done = debian.run(USR_BIN, "-d", environment=ENVIRONMENT, seconds=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def serve(debian: Host) -> Client:
    """Start mpsd, and a client that counts."""
    start(debian)
    return debian.counter(LD_LIBRARY_PATH=INSTALLED_SIMULATOR).ready(60)


def version(debian: Host) -> str:
    return debian.run("dpkg-query", "-W", "-f=${Version}", "mpsd").stdout


def test_a_client_is_served_by_the_package(debian: Host) -> None:
    assert debian.file(f"{USR_BIN}.vendor").read_text() == VENDOR
    serve(debian)
    assert len(json.loads(debian.run("mpsctl", "--json", "clients", environment=ENVIRONMENT).stdout)) == 1
    assert "mpsd can serve here" in debian.run("/opt/mpsd/venv/bin/mpsd", "check", environment=ENVIRONMENT).stdout
    assert "/usr/share/man/man1/mpsctl.1\n" in debian.run("dpkg", "-L", "mpsd").stdout
    assert debian.run("bash", "-n", "/usr/share/bash-completion/completions/mpsctl").returncode == 0
    assert debian.run("dpkg", "-S", "/usr/lib/tmpfiles.d/mpsd.conf", "/usr/lib/systemd/system/mpsd.service").returncode == 0


def test_an_upgrade_and_a_downgrade_disturb_no_client(debian: Host, release: Distribution) -> None:
    """Every file takes the place of an old one, which those who have it open keep; the daemon is killed and started, as by
    the unit."""
    client = serve(debian)
    for number in (2, 1):
        dpkg(debian, "-i", f"/mnt/dist/mpsd_{number}.deb")
        assert f"-{number}~{release.name}" in version(debian)
        client.goes_on()
        daemon = debian.file("/tmp/nvidia-mps") / f"{PROGRAM}.pid"
        pid = daemon.read_text().strip()
        assert debian.shell(f"kill -KILL {pid}").returncode == 0
        wait_for("the end of mpsd", lambda pid=pid: not debian.file(f"/proc/{pid}/maps").read_bytes())
        start(debian)
        client.goes_on()
    assert debian.file(f"{USR_BIN}.vendor").read_text() == VENDOR


def test_the_package_is_not_removed_beneath_a_client(debian: Host) -> None:
    client = serve(debian)
    done = try_dpkg(debian, "-r", "mpsd")
    assert (done.returncode != 0, "mpsd serves clients (mpsctl clients): end them first" in done.stderr) == (True, True), done
    client.goes_on()
    debian.end(client)
    done = try_dpkg(debian, "-r", "mpsd")
    assert (done.returncode != 0, "uses /opt/mpsd/venv" in done.stderr) == (True, True), done
    debian.ask("quit")
    dpkg(debian, "-r", "mpsd")
    assert debian.file(USR_BIN).read_text() == VENDOR
    assert not debian.file(f"{USR_BIN}.vendor").exists()
    assert not debian.file("/opt/mpsd").exists()
    assert debian.file("/etc/mpsd/mpsd.toml").exists()
    dpkg(debian, "-P", "mpsd")
    left = debian.run("find", "/etc", "/opt", "/usr", "-xdev", "-name", "*mpsd*", "-o", "-xdev", "-name", "*mpsctl*").stdout
    assert left.split() == ["/etc/mpsd.toml"]


def test_it_is_removed_beneath_a_client_by_force(debian: Host) -> None:
    serve(debian)
    dpkg(debian, "-r", "mpsd", MPSD_FORCE="1")
    assert debian.file(USR_BIN).read_text() == VENDOR
