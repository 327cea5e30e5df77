"""What `make` takes for done."""

import os
import pty
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.py", "clients/python/pyproject.toml", "clients/python/setup.py",
           "clients/mpsctl/pyproject.toml")  # fmt: skip


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("status", [0, 1], ids=["it runs", "it does not"])
def test_an_environment_whose_interpreter_does_not_run_is_made_anew(tmp_path: Path, status: int) -> None:
    """Such as one that root made, with a Python in root's own directory, for the user who types make next."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (*SOURCES, "clients/c/include/mpsd.h", ".venv/bin/python", ".venv/runtime", ".venv/bindings"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    python = tmp_path / ".venv/bin/python"
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    (tmp_path / ".venv/runtime").touch()
    (tmp_path / ".venv/bindings").touch()
    done = subprocess.run(["make", "-n", "venv"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    assert ("making .venv" in done.stdout) == bool(status)


STEPS = re.compile(r"-m venv|-m pip|binding/build\.py|native/build\.py|-s --no-print-directory -C")  # each takes seconds


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("target", ["build", "install"])
def test_each_step_that_takes_seconds_says_its_name_first(target: str) -> None:
    """A first `make build` takes a minute, and `make install` can take several: a silent one looks hung."""
    command = ["make", "-n", "-W", "pyproject.toml", target, "PREFIX=/nowhere", "PYTHON=python3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    steps = [line for line in done.stdout.splitlines() if STEPS.search(line)]
    assert len(steps) >= 3
    assert [line for line in steps if ".ci/step" not in line] == []


def test_a_step_counts_its_seconds_on_a_terminal_alone(tmp_path: Path) -> None:
    """And ends with the status of its command."""
    sleep, seen = tmp_path / "sleep", tmp_path / "seen"
    sleep.write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")
    sleep.chmod(0o755)
    waits = f"until [ -e {seen} ]; do sleep; done; echo done; exit 3"
    words = [str(ROOT / ".ci/step"), "compiling", "sh", "-c", waits]
    ours, theirs = pty.openpty()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environ) as process:
        shown = ""
        while "  2 s" not in shown or "done" not in shown:
            assert select.select([ours], [], [], 20)[0], shown
            shown += os.read(ours, 4096).decode()
            if "  2 s" in shown:
                seen.touch()
        assert process.wait(20) == 3
    os.close(ours)
    os.close(theirs)
    words[-1] = "exit 3"
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (3, "compiling\n", "")


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("root", ["/", "//"])
def test_the_root_directory_is_no_directory_of_a_package(root: str) -> None:
    """Nobody's directories were judged, the vendor's program was overwritten, and the scripts lost every slash."""

    def install(*words: str) -> str:
        command = ["make", "-n", "install", "PREFIX=/nowhere", "PYTHON=python3", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout

    assert install(f"DESTDIR={root}") == install()
    assert install("DESTDIR=/package/") == install("DESTDIR=/package") != install()


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_nothing_of_this_machine_is_removed_for_a_package(tmp_path: Path) -> None:
    """`make uninstall DESTDIR=x` removed what this machine runs."""
    names = ("PREFIX", "BINDIR", "SYSCONFDIR", "UNITDIR", "TMPFILESDIR", "DATADIR")
    places = [f"{name}={tmp_path}/{name}" for name in names]
    service = tmp_path / "UNITDIR/mpsd.service"
    service.parent.mkdir()
    service.touch()
    command = ["make", "-s", "uninstall", "DIVERT=", *places]

    def uninstall(*words: str) -> int:
        return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, check=False, timeout=60).returncode

    assert (uninstall(f"DESTDIR={tmp_path}/package") != 0, service.exists()) == (True, True)
    assert (uninstall(), service.exists()) == (0, False)
