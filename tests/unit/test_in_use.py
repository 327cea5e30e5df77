"""clients/debian/in-use, by which `make uninstall` and the Debian package see who uses the installation."""

import mmap
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.held_directory import MOST_SECONDS, held

IN_USE = Path(__file__).resolve().parents[2] / "clients/debian/in-use"
USER = """\
import ctypes, mmap, sys
ctypes.CDLL(None).prctl(15, b"\\33]0;it\\\\033[2J", 0, 0, 0)  # PR_SET_NAME
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_the_name_of_a_process_does_not_control_roots_terminal(tmp_path: Path) -> None:
    """Any user can map a file of the installation, and choose the name."""
    file = tmp_path / "file"
    file.write_bytes(bytes(mmap.PAGESIZE))
    words = [sys.executable, "-c", USER, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "mapped\n"
        found = run(tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"pid {user.pid} (?]0;it\\033[2J) uses {tmp_path}\n"


@pytest.mark.root
def test_a_held_process_keeps_no_removal_waiting(tmp_path: Path) -> None:
    """Any user can hold its directory below /proc.  The shell waited there itself, for the names of `/proc/[0-9]*/maps`, and
    SIGKILL ended neither grep nor the wait for its output."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            with held(f"/proc/{process.pid}", tmp_path / "mount"):
                began = time.monotonic()
                found = run(tmp_path, 2)
                assert time.monotonic() - began < MOST_SECONDS / 2
        finally:
            process.kill()
    assert (found.returncode, "it is not known" in found.stderr) == (1, True), found


@pytest.mark.parametrize(
    "fakes",
    [
        pytest.param({"grep": "exit 126"}, id="more processes than a command line takes"),
        pytest.param({"timeout": "exit 2"}, id="the shell cannot fork"),
    ],
)
def test_a_look_that_failed_is_not_taken_for_one_that_found_nobody(tmp_path: Path, fakes: dict[str, str]) -> None:
    found = run(tmp_path, **fakes)
    assert (found.returncode, "it is not known" in found.stderr) == (1, True), found


@pytest.mark.parametrize(
    "mktemp",
    [
        pytest.param("echo no space >&2; exit 1", id="no more files"),
        pytest.param('ln -s /dev/full "$0.full" && echo "$0.full"', id="no more blocks"),
    ],
)
def test_a_full_disk_is_named(tmp_path: Path, mktemp: str) -> None:
    """It was mktemp's message, or that /proc was not read in time."""
    found = run(tmp_path, mktemp=mktemp)
    why = "no file can be written in /tmp, which may be full"
    assert (found.returncode, found.stderr) == (1, f"it is not known which processes use {tmp_path}: {why}\n")


def test_a_directory_that_nobody_uses_may_go(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.returncode, found.stderr) == (0, "")


def run(place: Path, seconds: int = 30, **fakes: str) -> "subprocess.CompletedProcess[str]":
    """Ask who uses it, without pauses between the ten looks, and with so many seconds for each: other tests hold /proc/PID.
    fakes: further commands that it finds."""
    commands = place / "bin"
    commands.mkdir()
    own = {"sleep": "", "timeout": f'shift 3; exec /usr/bin/timeout -s KILL {seconds} "$@"'}
    for name, text in {**own, **fakes}.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    environ = {"PATH": f"{commands}:/usr/bin:/bin"}
    return subprocess.run([IN_USE, place], env=environ, capture_output=True, text=True, check=False, timeout=400)
