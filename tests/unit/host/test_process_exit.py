"""How processes ended, as seen by a process that is not their parent, or that looks too late."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.host import processes
from mpsd.host.process_exit import ProcessExit, decode, how_ended, how_it_is_ending
from mpsd.host.process_stat import parse_stat
from mpsd.model.process import ProcessId
from tests.leaderless import crowded, leaderless


def a_child(code: str) -> tuple[subprocess.Popen[bytes], ProcessId, int]:
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    process = processes.process_id(child.pid)
    assert process is not None
    pidfd = processes.open_pidfd(process)
    assert pidfd is not None
    return child, process, pidfd


def wait_for_end(child: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, which stays a zombie."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("input(); raise SystemExit(7)", ProcessExit(0, 7)),
        ("input()", ProcessExit(0, 0)),
        ("input(); import os; os.kill(os.getpid(), 9)", ProcessExit(signal.SIGKILL, 0)),
        ("input(); import os; os.abort()", ProcessExit(signal.SIGABRT, 0)),
    ],
)
def test_of_a_zombie(code: str, expected: ProcessExit) -> None:
    child, process, pidfd = a_child(code)
    try:
        assert how_it_is_ending(process) is None
        assert child.stdin
        child.stdin.write(b"\n")
        child.stdin.flush()
        wait_for_end(child)
        assert how_it_is_ending(process) == expected
        assert how_ended(pidfd, process) == expected
        assert how_ended(pidfd, ProcessId(process.pid, process.start_time + 1)) is None  # another one, later
    finally:
        os.close(pidfd)
        child.communicate()


def test_a_process_goes_on_without_its_first_thread() -> None:
    """It counted as ended by itself, and its GPU work was not held when it was killed later (before Linux 6.15)."""
    with leaderless() as made:
        process = processes.process_id(made.pid)
        assert process is not None
        assert how_it_is_ending(process) is None
        made.kill()
        wait_for_end(made)
        assert how_it_is_ending(process) == of_all_threads(process)


def test_the_end_is_not_that_of_the_first_thread_alone() -> None:
    """That ended before the others, with status 0; a tracer keeps some of them until it takes their status."""
    with crowded(4) as pid:
        process = processes.process_id(pid)
        assert process is not None
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while how_it_is_ending(process) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert how_it_is_ending(process) == of_all_threads(process)


def of_all_threads(process: ProcessId) -> ProcessExit:
    """Return the ending in the stat of the whole process; with older kernels it is that of the first thread."""
    found = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes())
    assert found is not None
    return decode(found.exit_code)


def test_of_one_whose_status_its_parent_has_taken() -> None:
    """Known from Linux 6.15 on; on older kernels the status is unknown, and none is made up."""
    child, process, pidfd = a_child("input()")
    try:
        child.kill()
        child.communicate()
        expected = (ProcessExit(9, 0),) if kernel() >= (6, 15) else (None, ProcessExit(9, 0))
        assert how_ended(pidfd, process) in expected
        assert how_it_is_ending(process) is None
    finally:
        os.close(pidfd)


def kernel() -> tuple[int, ...]:
    return tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])


@given(st.integers(0, 0xFFFF))
def test_a_status_is_read_as_wait_does(status: int) -> None:
    if os.WIFEXITED(status):
        assert decode(status) == ProcessExit(0, os.WEXITSTATUS(status))
    elif os.WIFSIGNALED(status):
        assert decode(status) == ProcessExit(os.WTERMSIG(status), os.WEXITSTATUS(status))
