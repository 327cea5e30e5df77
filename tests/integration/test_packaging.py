"""Installation, removal and the systemd unit, each below a temporary root."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mpsd.check.probes import CAPABILITIES
from mpsd.config import paths as places
from mpsd.config.options import Config
from mpsd.host.file_servers import FUSE_CONNECTIONS
from tests.integration.machine import open_machine

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "clients/systemd/mpsd.service"
DEVICES_UNIT = UNIT.with_name("mpsd-devices.service")
TMPFILES = ROOT / "clients/systemd/mpsd.tmpfiles"
PROGRAM = "nvidia-cuda-mps-control"
VENDOR = b"#!/bin/sh\necho the vendor's\n"


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, timeout=300, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Yield a root to install below, with a vendor's program and a dpkg."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / PROGRAM).write_bytes(VENDOR)
    (tmp_path / "bin" / PROGRAM).chmod(0o755)
    (tmp_path / "dpkg").mkdir()
    (tmp_path / "dpkg" / "diversions").touch()
    return tmp_path


def make(place: Path, target: str, divert: str) -> None:
    done = try_make(place, target, divert)
    assert done.returncode == 0, done.stderr


def try_make(
    place: Path, target: str, divert: str = "", tree: Path = ROOT, **options: object
) -> subprocess.CompletedProcess[str]:
    places = {
        "PREFIX": "opt", "BINDIR": "bin", "SYSCONFDIR": "etc", "UNITDIR": "units", "TMPFILESDIR": "tmpfiles",
        "DATADIR": "share",
    }  # fmt: skip
    settings = [f"{name}={place / folder}" for name, folder in places.items()]
    return run("make", target, *settings, f"DIVERT={divert}", cwd=tree, **options)


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("with_dpkg", [True, False], ids=["dpkg", "no dpkg"])
def test_the_vendors_program_makes_way_and_comes_back(programs: None, place: Path, with_dpkg: bool) -> None:
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
    assert (place / "opt/venv/lib/mpsd/launcher/mpsd-launcher").exists()
    assert (place / "opt/venv/lib/mpsd/inspector/mpsd-inspector").exists()
    done = run(str(place / "opt/venv/bin/python3"), "-I", "-c", "import mpsd.native, mpsd_client._native", env={}, cwd="/")
    assert done.returncode == 0, done.stderr
    done = run(str(place / "bin/mpsctl"), "--socket", str(place / "no.sock"), "status", env={}, cwd="/")
    assert (done.returncode, done.stderr) == (3, f"mpsctl status: no mpsd at {place}/no.sock: No such file or directory\n")
    done = run(str(place / "bin/mpsd-images"), "list", "--directory", str(place / "none"), env={}, cwd="/")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"mpsd-images list: {place}/none is no directory")
    assert (place / "share/man/man1/mpsctl.1").read_text().startswith(".TH MPSCTL 1")

    (place / "etc/mpsd/mpsd.toml").write_text("# mine\n")
    with open_machine() as machine:
        machine.variables["LD_LIBRARY_PATH"] = str(place / "opt/venv/lib/mpsd/sim/lib")
        del machine.variables["MPSD_PYTHON"]
        assert machine.run("-d", program=ours, seconds=60).returncode == 0
        client = machine.counter().ready()
        make(place, "install", divert)  # beneath all that runs: nothing is written in place
        client.goes_on()
        machine.kill_daemon()
        assert machine.run("-d", program=ours, seconds=60).returncode == 0
        client.goes_on()
        done = try_make(place, "uninstall", divert)
        assert (done.returncode != 0, f"uses {place}/opt/venv" in done.stderr) == (True, True)
        client.goes_on()
    assert (place / "etc/mpsd/mpsd.toml").read_text() == "# mine\n"

    make(place, "uninstall", divert)
    assert ours.read_bytes() == VENDOR
    assert not vendors.exists()
    assert not (place / "opt").exists()
    assert not [*(place / "share").rglob("*mpsctl*"), *(place / "bin").glob("mps*"), *(place / "tmpfiles").iterdir()]
    assert not [*(place / "units").iterdir()]
    assert sorted(path.name for path in (place / "etc").rglob("*") if path.is_file()) == ["mpsd", "mpsd.toml"]


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "uid", "through"),
    [
        pytest.param(0o755, 65534, "parent", id="another user's"),
        pytest.param(0o777, 0, "parent", id="everybody's"),
        pytest.param(0o1777, 65534, "parent", id="another user's, with the sticky bit"),
        pytest.param(0o755, 65534, "link", id="another user's, behind a link"),
        pytest.param(0o755, 65534, "two", id="another user's, with a link in it that a link leads to"),
    ],
)
def test_nothing_is_installed_below_what_others_may_replace(place: Path, mode: int, uid: int, through: str) -> None:
    """Its owner would replace the directory, or the link in it, and root would run the owner's programs."""
    parent = place / "parent"
    (parent / "opt").mkdir(parents=True)
    (place / "link").symlink_to(parent)
    (place / "roots/opt").mkdir(parents=True)
    (parent / "onwards").symlink_to("../roots")
    (place / "two").symlink_to("parent/../parent/onwards")
    parent.chmod(mode)
    os.chown(parent, uid, uid)
    done = run("make", "install-files", f"PREFIX={place / through / 'opt'}", *elsewhere(place), cwd=ROOT)
    assert done.returncode != 0
    assert f"chown -h root {parent}; chmod go-w" in done.stderr
    assert not list((parent / "opt").iterdir())
    (parent / "opt/venv").mkdir()
    done = run("make", "uninstall", f"PREFIX={place / through / 'opt'}", *elsewhere(place), cwd=ROOT)
    assert (done.returncode != 0, f"chown -h root {parent}" in done.stderr) == (True, True)
    assert (parent / "opt/venv").exists()


@pytest.mark.root
@pytest.mark.parametrize("left", ["bin", "etc/mpsd/mpsd.toml", "share/man/man1"])
def test_other_places_than_the_prefix_are_judged_too(place: Path, left: str) -> None:
    """And what is below them: root keeps a configuration that it finds, and writes through a link that is the manual page."""
    (place / left).mkdir(parents=True, exist_ok=True)
    os.chown(place / left, 65534, 65534)
    done = run("make", "install-files", f"PREFIX={place / 'opt'}", *elsewhere(place), cwd=ROOT)
    assert done.returncode != 0
    assert f"chown -h root {place / left}" in done.stderr
    assert not (place / "opt").exists()


PYTHON = """\
#!/bin/sh
case $2 in
venv) ls -A {venv} >{place}/cleared; exit 1 ;;
*) echo the same ;;
esac
"""


def of_another(venv: Path) -> None:
    os.chown(venv / "lib/their.pth", 65534, 65534)


def for_all(venv: Path) -> None:
    (venv / "lib/their.pth").chmod(0o666)


def link(venv: Path) -> None:
    venv.rename(venv.parent / "precious")
    venv.symlink_to(venv.parent / "precious")


@pytest.mark.root
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(of_another, id="a file of another user"),
        pytest.param(for_all, id="a file that others can write"),
        pytest.param(link, id="a link"),
        pytest.param(None, id="all root's"),
    ],
)
def test_an_environment_of_others_is_neither_run_nor_kept(place: Path, change: Callable[[Path], None] | None) -> None:
    """As where another user had installed, and root took the directory over: root ran the user's programs, and emptied what a
    link leads to.  An environment that is root's is kept."""
    venv = place / "opt/venv"
    python = '#!/bin/sh\ntouch "${0%/*}/../../ran"\necho the same\n'
    for path, text in (
        (place / "python3", PYTHON.format(venv=venv, place=place)),
        (venv / "bin/python", python),
        (venv / "lib/their.pth", ""),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    if change is not None:
        change(venv)
    words = [f"PREFIX={place / 'opt'}", *elsewhere(place), f"PYTHON={place / 'python3'}", "CONSTRAINTS=", "WHEELS=/nowhere"]
    done = run("make", "install-files", *words, cwd=ROOT)
    if change is None:
        assert (place / "opt/ran").exists(), done
        assert (venv / "lib/their.pth").exists()
    else:
        assert (place / "cleared").read_text() == "", done
        assert not (place / "opt/ran").exists()
        assert not venv.is_symlink()
    if change is link:
        assert (place / "opt/precious/lib/their.pth").exists()


def elsewhere(place: Path) -> list[str]:
    names = {"BINDIR": "bin", "SYSCONFDIR": "etc", "UNITDIR": "units", "TMPFILESDIR": "tmpfiles", "DATADIR": "share"}
    return [f"{name}={place / folder}" for name, folder in names.items()]


@pytest.mark.slow
@pytest.mark.root
def test_what_is_installed_is_roots_and_starts_from_an_empty_environment(place: Path, short_dir: Path) -> None:
    """The tree is another user's, with the modes of umask 000, and so is what an earlier installation left.

    It starts as the Kubernetes plugin starts it: two variables, no PATH.  mpsd is found without any help.
    """
    tree = place / "tree"
    unwanted = shutil.ignore_patterns(".git", ".venv", "__pycache__", "tests", "kmod", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=unwanted, symlinks=True)
    run("chown", "-hR", "65534:65534", str(tree))
    run("chmod", "-R", "go+w", str(tree))
    left = place / "opt/venv/lib/mpsd/left"
    left.parent.mkdir(parents=True)
    left.touch()
    os.chown(left, 65534, 65534)
    done = try_make(place, "install", tree=tree, umask=0)
    assert done.returncode == 0, done.stderr
    installed = [path for name in ("opt", "bin", "etc", "units", "tmpfiles", "share") for path in (place / name).rglob("*")]
    assert len(installed) > 1000
    assert not [path for path in installed if path.lstat().st_uid or (not path.is_symlink() and path.lstat().st_mode & 0o022)]

    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(short_dir), "CUDA_MPS_LOG_DIRECTORY": str(short_dir), "MPSD_BACKEND": "gpux"}
    done = run(str(place / "bin" / PROGRAM), "-d", env=environ, cwd="/")
    assert done.returncode == 1
    assert 'backend: found "gpux"' in done.stdout

    (place / "opt").chmod(0o777)
    done = try_make(place, "install", tree=tree)
    assert (done.returncode != 0, f"chmod go-w {place}/opt" in done.stderr) == (True, True)


def test_the_directories_of_the_service_are_those_of_the_daemon() -> None:
    """The defaults, which the unit and the line for the boot name once more."""
    assert f"d! {Config().pipe_directory} 0711 root root -" in TMPFILES.read_text().splitlines()
    unit = UNIT.read_text().splitlines()
    assert f"LogsDirectory={os.path.basename(Config().log_directory)}" in unit
    assert "LogsDirectoryMode=0711" in unit
    assert f"RuntimeDirectory={places.state_directory(Config(), 0, {}).parent.name}" in unit


@pytest.mark.root  # to give them their owner
def test_systemd_takes_the_tmpfiles_without_complaint(tmp_path: Path) -> None:
    if not shutil.which("systemd-tmpfiles"):
        pytest.skip("no systemd-tmpfiles here; apt-get install systemd")
    (tmp_path / "tmp").mkdir()
    done = run("systemd-tmpfiles", "--create", "--boot", f"--root={tmp_path}", str(TMPFILES))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "tmp/nvidia-mps").stat().st_mode & 0o7777 == 0o711


@pytest.mark.root  # for a /tmp of its own
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("true", "root 711", id="missing"),
        pytest.param("install -d -m 777 -o nobody /tmp/nvidia-mps", "nobody 777", id="of another user"),
    ],
)
def test_the_package_makes_the_pipe_directory_before_the_next_boot(before: str, after: str) -> None:
    """systemd-tmpfiles without --boot does nothing about a line with `!`; with it, it takes a directory from its owner."""
    postinst = (ROOT / "clients/debian/postinst").read_text()
    script = f"""mount -t tmpfs none /tmp; mount -t tmpfs none /run; {before}; sh -c "$1" postinst configure"""
    done = run("unshare", "--mount", "sh", "-ec", f"{script}; stat -c '%U %a' /tmp/nvidia-mps", "sh", postinst)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{after}\n", "")


def test_systemd_takes_the_unit_without_complaint(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here; apt-get install systemd")
    units = [tmp_path / each.name for each in (UNIT, DEVICES_UNIT)]
    for unit, source in zip(units, (UNIT, DEVICES_UNIT), strict=True):
        unit.write_text(re.sub(r"/usr/bin/nvidia-\S+", shutil.which("true") or "/bin/true", source.read_text()))
    done = run("systemd-analyze", "verify", "--man=no", *map(str, units))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_driver_is_loaded_before_systemd_looks_for_its_devices() -> None:
    """By ExecStartPre= it was loaded too late: systemd 252 had looked, and no program of the unit could open its devices."""
    lines = UNIT.read_text().splitlines()
    assert "DeviceAllow=char-nvidia* rw" in lines
    assert f"Wants={DEVICES_UNIT.name}" in lines
    assert [line for line in lines if line.startswith("After=") and DEVICES_UNIT.name in line.split()]
    assert not [line for line in lines if line.startswith("ExecStartPre=")]
    assert "nvidia-modprobe" in DEVICES_UNIT.read_text()


def test_a_driver_that_does_not_answer_delays_mpsd_for_a_while_only() -> None:
    """Type=oneshot has no timeout of itself (systemd.service(5)), and mpsd.service is started after that unit."""
    lines = DEVICES_UNIT.read_text().splitlines()
    assert "Type=oneshot" in lines
    assert [line for line in lines if re.fullmatch(r"Timeout(Start)?Sec=[1-9][0-9]*", line)]


def test_every_line_of_the_unit_that_hardens_is_explained() -> None:
    """An operator who meets a refusal finds out which line, and what it is for."""
    explained = (ROOT / "docs/install.md").read_text()
    settings = [line.partition("=") for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line)]
    service = settings[[name for name, _, _ in settings].index("KillMode") :]
    assert not [name for name, _, _ in service if name != "WantedBy" and f"`{name}" not in explained]
    capabilities = {word for name, _, value in service if name == "CapabilityBoundingSet" for word in value.split()}
    assert not [name for name in capabilities if f"`{name}`" not in explained]


def test_the_unit_lets_mpsd_abort_file_servers() -> None:
    """ProtectKernelTunables= makes all mounts below /sys read only: systemd 252 did that, and mpsd aborted none."""
    lines = UNIT.read_text().splitlines()
    assert "ProtectKernelTunables=yes" in lines
    assert f"ReadWritePaths=-{FUSE_CONNECTIONS}" in lines


def test_the_unit_lets_mpsd_freeze_cgroups() -> None:
    """ProtectControlGroups=yes makes /sys/fs/cgroup read only: each process was stopped by itself, and not the cgroup."""
    assert "ProtectControlGroups=no" in UNIT.read_text().splitlines()


def test_the_check_asks_for_no_capability_that_the_unit_withholds() -> None:
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    granted = {name for line in lines for name in line.split()}
    assert set(CAPABILITIES) <= granted


def test_the_ci_and_the_needs_are_good_shell() -> None:
    for script in (".ci/run", ".ci/as-user", ".ci/needs", ".ci/refuse-others", "tests/check"):
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
