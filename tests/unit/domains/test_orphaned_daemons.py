"""Vendor daemons that lost their directories: the record of their clients, and the search for them."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mpsd.domains.orphaned_daemons import _homeless, _read
from mpsd.host import processes
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.model.process import ProcessId

MANY = 4000
STATUS_SECONDS = 0.02  # of a process with 65,536 groups
AS_VENDOR = """
import os, sys
open("/proc/self/comm", "w").write("nvidia-cuda-mps-control")
if len(sys.argv) > 1:
    file = open(sys.argv[1], "w")
    os.unlink(sys.argv[1])
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("7:1 8:2 9:3\n", {ProcessId(7, 1): {ProcessId(8, 2), ProcessId(9, 3)}}),
        ("7:1\n", {ProcessId(7, 1): set()}),
        ("7:1 8:2\n\n", {}),
        ("7:1:3\n", {}),
        ("7:x\n", {}),
        ("\xff\n", {}),
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, text: str, clients: dict[ProcessId, set[ProcessId]]) -> None:
    """An empty line kept mpsd from starting."""
    (tmp_path / "record").write_text(text, encoding="latin-1")
    assert _read(tmp_path / "record") == clients


def vendors(*words: str) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen([sys.executable, "-S", "-c", AS_VENDOR, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout
    assert child.stdout.readline() == b"ready\n"
    return child


@pytest.fixture
def named() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that only calls itself the vendor's."""
    with vendors() as child:
        yield child
        child.kill()


@pytest.fixture
def homeless(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """One that has a removed file open too, as a daemon that lost its directory."""
    with vendors(str(tmp_path / "control_lock")) as child:
        yield child
        child.kill()


def test_a_name_alone_has_no_status_read(
    named: "subprocess.Popen[bytes]", homeless: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process can take the name: with 4,000 of 65,536 groups each, mpsd did not start in the 90 s that systemd gives it."""
    monkeypatch.setattr(processes, "_status", lambda pid: pytest.fail(f"the status of {pid} was read"))
    found = [each.pid for each in _homeless()]
    assert homeless.pid in found
    assert named.pid not in found


@pytest.mark.root
def test_no_other_users_process_is_read(homeless: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own held processes took the 5 s of a search, and hid root's daemons."""
    text, read = ProcessReader.text, list[int]()
    monkeypatch.setattr(ProcessReader, "text", lambda self, pid, name: read.append(pid) or text(self, pid, name))
    with subprocess.Popen(["sleep", "60"], user=1001) as others:
        try:
            assert homeless.pid in [each.pid for each in _homeless()]
        finally:
            others.kill()
    assert homeless.pid in read
    assert others.pid not in read


def test_a_process_that_cannot_be_read_is_named(homeless: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon that was not found was left running without a line in the log."""
    text = ProcessReader.text

    def unless_held(self: ProcessReader, pid: int, name: str) -> bytes:
        if pid == os.getpid():
            raise Unanswered(errno.ETIMEDOUT, "its reader waits")
        return text(self, pid, name)

    monkeypatch.setattr(ProcessReader, "text", unless_held)
    with capture_logs() as lines:
        assert homeless.pid in [each.pid for each in _homeless()]
    [line] = lines  # other tests hold processes too
    assert line["event"] == "domain.not_searched"
    assert re.fullmatch(rf"processes that were not read \(\d+\): .*\b{os.getpid()}\b.*", line["why"])


def test_the_search_ends_among_processes_that_are_slow_to_read(
    homeless: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a user gives its processes, so that they pass all checks but the last: mpsd starts."""
    now, read = [0.0], list[int]()

    def slow(pid: int) -> tuple[int, int]:
        read.append(pid)
        now[0] += STATUS_SECONDS
        return os.geteuid() + 1, 0

    monkeypatch.setattr(processes, "owner", slow)
    monkeypatch.setattr(os, "listdir", lambda path: [str(homeless.pid)] * MANY)
    with capture_logs() as lines:
        assert _homeless(lambda: now[0]) == []
    assert 0 < len(read) < MANY * 0.1
    assert [line["event"] for line in lines] == ["domain.not_searched"]
