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
from mpsd.host.process_exit import ProcessExit, decode, how_ended, how_it_is_ending, parse_stat
from mpsd.model.process import ProcessId
from tests.leaderless import crowded, leaderless

STAT = "4711 (a) b)) {state} 1 2 3 0 -1 {flags} " + "0 " * 12 + "777 " + "0 " * 29 + "{code}\n"
PF_EXITING = 4


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
    found = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes(), process.start_time)
    assert found is not None
    return found


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


@pytest.mark.parametrize(
    ("state", "flags", "code", "expected"),
    [
        pytest.param("R", 0, 0, None, id="it runs"),
        pytest.param("D", PF_EXITING, 9, ProcessExit(9, 0), id="killed, on its way"),
        pytest.param("R", PF_EXITING, 256, ProcessExit(0, 1), id="ends by itself"),
        pytest.param("Z", PF_EXITING, 139, ProcessExit(11, 0), id="with a core dump"),
        pytest.param("Z", 0, 15, ProcessExit(15, 0), id="a zombie"),
    ],
)
def test_stat(state: str, flags: int, code: int, expected: ProcessExit | None) -> None:
    text = STAT.format(state=state, flags=flags, code=code).encode()
    assert parse_stat(text, 777) == expected
    assert parse_stat(text, 778) is None


@given(st.integers(0, len(STAT)))
def test_half_a_line_tells_nothing(length: int) -> None:
    whole = STAT.format(state="Z", flags=4, code=9).encode()
    found = parse_stat(whole[:length], 777)
    assert found is None or length >= len(whole) - len("\n")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_not(text: bytes) -> None:
    parse_stat(b"1 (x) " + text, 777)


@given(st.integers(0, 0xFFFF))
def test_a_status_is_read_as_wait_does(status: int) -> None:
    if os.WIFEXITED(status):
        assert decode(status) == ProcessExit(0, os.WEXITSTATUS(status))
    elif os.WIFSIGNALED(status):
        assert decode(status) == ProcessExit(os.WTERMSIG(status), os.WEXITSTATUS(status))
