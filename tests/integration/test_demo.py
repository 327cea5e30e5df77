"""`make run`: the scene of two tenants, on the simulator, as it is played for people.

Everything the scene starts carries a mark in its environment, by which the tests see what it leaves behind.
"""

import os
import pty
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCENE = ROOT / "clients/demo/two_tenants.py"
COLUMNS = 80
ESCAPE = "\033"
STRANGER = 1234  # a user who owns no file here


class Playground:
    """Guards a temporary directory, and knows every process of a scene that was played in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"demo-{uuid.uuid4().hex}"

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MPSD_", "CUDA_", "NO_COLOR"))}
        return kept | {"TMPDIR": str(self.directory), "MARK": self.mark, "TERM": "xterm"} | more

    def play(self, python: str = sys.executable, uid: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [python, str(SCENE), "--fast", "--backend", "sim"]
        return subprocess.run(
            command, env=self.environ(), user=uid, group=uid, extra_groups=None if uid is None else [],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def left(self) -> list[str]:
        """Processes and files of the scene that are still there."""
        found = [str(path) for path in self.directory.iterdir()]
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in Path("/proc", entry, "environ").read_bytes():
                    found.append(Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended
        return found


@pytest.fixture
def playground(short_dir: Path) -> Playground:
    short_dir.chmod(0o1777)  # tenants are other users; sticky, or mpsd refuses what lies below
    return Playground(short_dir)


def assert_for_a_pipe(text: str) -> None:
    assert ESCAPE not in text
    assert not [line for line in text.splitlines() if len(line) > COLUMNS]


@pytest.mark.root
@pytest.mark.slow
def test_as_root_the_other_tenant_goes_on_and_a_third_comes_in_at_once(playground: Playground) -> None:
    done = playground.play()
    assert done.returncode == 0, done.stdout + done.stderr
    assert_for_a_pipe(done.stdout)
    one, _, two = done.stdout.partition("ACT 2")
    assert "A dies: 700" in one
    assert "C is refused: 807" in one
    assert "A dies" not in two
    assert "B dies: 700" in two
    assert "C is refused" not in two
    assert "counts on, worst stall" in two
    assert playground.left() == []


@pytest.mark.root
@pytest.mark.slow
def test_without_rights_the_scene_is_honest_about_what_is_lost(playground: Playground, strangers_python: Path) -> None:
    done = playground.play(str(strangers_python), STRANGER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_for_a_pipe(done.stdout)
    two = done.stdout.partition("ACT 2")[2]
    assert "mpsd has not the rights to relay here" in two
    assert "A dies: 700" in two
    assert "C is refused" not in two
    assert "As root, mpsd would have given" in two
    assert playground.left() == []


@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("more", "has_colours"),
    [pytest.param({}, True, id="colours"), pytest.param({"NO_COLOR": "1"}, False, id="NO_COLOR", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_ctrl_c_on_a_terminal_leaves_nothing_behind(playground: Playground, more: dict[str, str], has_colours: bool) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, str(SCENE), "--fast", "--backend", "sim"]
    scene = subprocess.Popen(
        command, env=playground.environ(**more), stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
    )
    os.close(theirs)
    try:
        text = read_until(ours, "starts a second program")
        os.kill(scene.pid, signal.SIGINT)
        text += read_until(ours, None)
        assert scene.wait(40) == 130
    finally:
        scene.kill()
        os.close(ours)
    assert f"{ESCAPE}[3A" in text, "the tenants' lines are drawn again in place"
    assert (f"{ESCAPE}[32m" in text) is has_colours
    assert "Traceback" not in text
    assert playground.left() == []


def read_until(terminal: int, word: str | None) -> str:
    """What was printed, up to `word`, or to the end."""
    text = ""
    while word is None or word not in text:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal by this error
            break
        if not data:
            break
        text += data.decode(errors="replace")
    return text
