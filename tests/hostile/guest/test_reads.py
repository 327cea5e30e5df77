"""Processes of another user that nobody can read: what hangs, what does not, and that mpsd serves everybody else.

Runs in a virtual machine of its own: what it does would hang `ps` for everybody on a shared one.
"""

import ctypes
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import calls
from telling import tell

from mpsd import processes
from mpsd.inspector import Inspector, Unreadable
from tests.hostile.attacker import NOBODY, PYTHON
from tests.integration.machine import FRONT_END, SIMULATOR, Machine

HANG = Path(__file__).with_name("hang.py").read_text()
SECONDS = 4.0  # a read that answers takes milliseconds, here too
LIBC = ctypes.CDLL(None, use_errno=True)
KCMP, PIDFD_GETFD = 312, 438


def contents(name: str) -> Callable[[int], object]:
    return lambda pid: Path(f"/proc/{pid}/{name}").read_bytes()


READS: dict[str, Callable[[int], object]] = {
    **{name: contents(name) for name in ("stat", "status", "cgroup", "comm", "environ", "maps", "cmdline", "statm")},
    "the directory": lambda pid: os.stat(f"/proc/{pid}"),
    "fd": lambda pid: [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")],
    "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "pidfd_open": os.pidfd_open,
    "kcmp": lambda pid: LIBC.syscall(KCMP, os.getpid(), pid, 0, 0, 0),
    "pidfd_getfd": lambda pid: LIBC.syscall(PIDFD_GETFD, os.pidfd_open(pid), 0, 0),
}
ANSWERS = {"stat", "status", "cgroup", "comm", "statm", "the directory", "fd", "exe", "pidfd_open"}


@contextmanager
def hanging(*words: object) -> Iterator[list[int]]:
    """Processes of another user that keep whoever reads them waiting."""
    attacker = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", HANG, str(NOBODY), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd="/", env={"TMPDIR": "/dev/shm"},
    )  # fmt: skip
    assert attacker.stdin
    assert attacker.stdout
    try:
        pids = [int(attacker.stdout.readline()) for _ in range(int(str(words[1])) if len(words) > 1 else 1)]
        for pid in pids:
            wait_until(lambda pid=pid: in_the_trap(pid))
        yield pids
    finally:
        attacker.stdin.close()
        attacker.stdout.close()
        attacker.wait(30)


def in_the_trap(pid: int) -> bool:
    """It waits in the kernel, for the answer that never comes or, with its memory gone, for a signal."""
    return processes.state(pid) in "DSX" and Path(f"/proc/{pid}/wchan").read_text() not in ("0", "")


def wait_until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.2)


def becomes(pid: int, read: Callable[[int], object]) -> str:
    """Of a process that reads so: it answers, can be killed while it waits, or cannot."""
    reader = os.fork()
    if not reader:
        try:
            read(pid)
        finally:
            os._exit(0)
    if ends(reader):
        return "answers"
    os.kill(reader, signal.SIGKILL)
    return "killable" if ends(reader) else "not killable"


def ends(pid: int) -> bool:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    return False


def what_becomes(kind: str) -> dict[str, str]:
    with hanging(kind) as (pid,):
        found = {name: becomes(pid, read) for name, read in READS.items()}
    tell(fact=kind, value=json.dumps(found))
    assert {name for name, what in found.items() if what == "answers"} >= ANSWERS
    return found


def test_which_reads_of_a_process_wait_for_its_exec() -> None:
    """Kernels of 2026 (Debian's 6.1.0-56, 6.12.117) close files before exec takes the lock; with older ones four reads wait."""
    found = what_becomes("exec")
    waits = {found[name] for name in ("environ", "maps", "kcmp", "pidfd_getfd")}
    assert waits in ({"answers"}, {"killable"})


def test_which_reads_of_a_process_wait_for_its_memory() -> None:
    found = what_becomes("memory")
    assert {found[name] for name in ("environ", "maps", "cmdline")} == {"killable"}


@pytest.fixture
def inspector() -> Iterator[Inspector]:
    made = Inspector()
    made.start()
    yield made
    made.close()


def test_one_user_who_cannot_be_read_is_refused_and_no_other(inspector: Inspector) -> None:
    """Each read ends by its deadline; the same process answers for others meanwhile; afterwards nothing is left."""
    own = os.getpid()
    with hanging("memory") as (pid,):
        before = inspector.pid
        for _ in range(10):
            began = time.monotonic()
            with pytest.raises(Unreadable):
                inspector.facts_now(pid, [])
            assert time.monotonic() - began < 10
            assert inspector.facts_now(own, []) is not None
        assert inspector.pid == before
    children = Path(f"/proc/{inspector.pid}/task/{inspector.pid}/children")
    wait_until(lambda: not children.read_text().strip(), 60)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Files in memory: the guest's disk is the host's, and cannot be written."""
    if not (FRONT_END.exists() and (SIMULATOR / "lib/libcuda.so.1").exists()):
        pytest.skip("the simulator is not built: make build")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    for name in ("pipe", "log", "machine"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    made = Machine(place)
    yield made
    made.clear()


@pytest.mark.deadline(600)
def test_mpsd_serves_everybody_else(machine: Machine) -> None:
    """Twelve processes of another user connect, and nobody can read them; a newcomer starts, and mpsd's lists are given.

    mpsd is stopped while they connect: else it may have read them before.
    """
    machine.run("-d", seconds=120)
    wait_until(lambda: bool(machine.journal("daemon.ready")), 240)
    first = machine.counter().ready(120)
    machine.signal_daemon("SIGSTOP")
    with hanging("memory", 12, machine.pipe / "control"):
        machine.signal_daemon("SIGCONT")
        began = time.monotonic()
        second = machine.counter().ready(120)
        seconds = time.monotonic() - began
        with machine.mpsd() as mpsd:
            began = time.monotonic()
            mpsd.ask(calls.client_list())
            listed = time.monotonic() - began
        waiting = [line for line in machine.journal("client.waiting") if "read" in line["reason"]]
        blocked = max([line["ms"] for line in machine.journal("loop.blocked")], default=0)
        facts = {"start_s": round(seconds, 2), "list_s": round(listed, 2), "unread": len(waiting), "blocked_ms": blocked}
        tell(fact="mpsd", value=json.dumps(facts))
        assert len(waiting) >= 12, "not all of them were read too late: nothing was shown"
        assert (listed < 10, blocked < 1000) == (True, True)
        for each in (first, second):
            each.goes_on(60)
