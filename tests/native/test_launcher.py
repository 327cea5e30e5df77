"""mpsd-launcher: a program in a mount namespace in which it can enter a directory that is closed outside of it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "native/launcher/mpsd-launcher"
NOT_ALLOWED, FAILED = 125, 126
OTHER = 65534
NO_GROUP = 0x7FFFFFFE  # native/include/mpsd_users.h
SECONDS = 20

pytestmark = pytest.mark.root


@pytest.fixture
def home() -> Iterator[Path]:
    """Where other users can go: pytest's own directories are the tester's."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    made = place / "home"
    for directory, mode in ((made, 0o700), (made / "pipe", 0o711), (made / "log", 0o700)):
        directory.mkdir()
        directory.chmod(mode)
    place.chmod(0o711)
    (made / "secret").write_text("of mpsd")
    yield made
    shutil.rmtree(place)


def launch(*words: object, uid: int | None = None) -> "subprocess.CompletedProcess[str]":
    command = [str(LAUNCHER), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/", user=uid, env={})


def shell(home: Path, script: str, *words: object) -> str:
    done = launch(*words, home, "/bin/sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def running(home: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a program inside that waits, and has reported it."""
    command = [LAUNCHER, home, "/bin/sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env={}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_inside_the_paths_are_the_same_and_open_to_pass(home: Path) -> None:
    (home / "pipe/control").write_text("hello")
    look = f"stat -c '%a %n' {home} {home}/pipe {home}/log; ls {home}; cat {home}/pipe/control"
    said = shell(home, f"{look}; echo x > {home}/log/new")
    assert said == f"711 {home}\n711 {home}/pipe\n700 {home}/log\nlog\npipe\nhello"
    assert (home / "log/new").read_text() == "x\n"


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_another_user_passes_inside_alone(home: Path, running: "subprocess.Popen[str]", where: str) -> None:
    (home / "pipe/control").write_text("hello")
    (home / "pipe/control").chmod(0o666)
    words = ["nsenter", f"--target={running.pid}", "--mount"] if where == "inside" else []
    words += ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "cat", str(home / "pipe/control")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/")
    assert done.stdout == ("hello" if where == "inside" else "")
    assert ("Permission denied" in done.stderr) == (where == "outside")


def test_the_host_sees_no_mount_and_its_own_arrive(home: Path, running: "subprocess.Popen[str]") -> None:
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    mounts = Path(f"/proc/{running.pid}/mountinfo").read_text().splitlines()
    [cover] = [line for line in mounts if line.split()[4] == str(home)]
    assert {"nosuid", "nodev", "noexec"} <= set(cover.split()[5].split(","))
    assert " - tmpfs mpsd " in cover
    assert "size=64k" in cover
    assert "shared:" not in "".join(mounts)


def test_it_passes_on_the_standard_descriptors_alone(home: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        command = [LAUNCHER, home, "/bin/sh", "-c", "ls /proc/self/fd"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True, pass_fds=[read], env={})
    finally:
        os.close(read)
        os.close(write)
    assert done.stdout.split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


def test_it_becomes_another_user_without_groups(home: Path) -> None:
    """Also not with the group that happens to have the number of the user."""
    assert shell(home, "id -u; id -g; id -G", "--uid", 4242) == f"4242\n{NO_GROUP}\n{NO_GROUP}\n"


def test_the_programs_status_is_its_own(home: Path) -> None:
    assert launch(home, "/bin/sh", "-c", "exit 100").returncode == 100


@pytest.mark.parametrize("words", [("--try", "/"), ("HOME", "/bin/true")])
def test_who_may_not_mount_is_told_apart(home: Path, words: tuple[str, ...]) -> None:
    done = launch(*(str(home) if word == "HOME" else word for word in words), uid=OTHER)
    assert done.returncode == NOT_ALLOWED
    assert done.stderr == "mpsd-launcher: a mount namespace cannot be made: Operation not permitted\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: "),
        (("relative", "/bin/true"), "usage: "),
        (("HOME",), "usage: "),
        (("HOME", "true"), "usage: "),
        (("--uid", "x", "HOME", "/bin/true"), "a user id was expected"),
        (("--uid", "4294967295", "HOME", "/bin/true"), "a user id was expected"),
        (("HOME/none", "/bin/true"), "No such file or directory"),
        (("HOME/link", "/bin/true"), "Not a directory"),
        (("HOME", "/bin/none"), "No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_said(home: Path, words: tuple[str, ...], said: str) -> None:
    (home / "link").symlink_to(home)
    done = launch(*(word.replace("HOME", str(home)) for word in words))
    assert done.returncode == FAILED
    assert done.stderr.startswith("mpsd-launcher: ")
    assert said in done.stderr


def test_a_try_changes_nothing() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    assert launch("--try", "/").returncode == 0
    assert Path("/proc/self/mountinfo").read_text() == before
