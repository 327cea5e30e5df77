"""A process of another user that waits in exec: which reads of it wait too, and which do not.

Runs in a virtual machine of its own: what it does would hang `ps` for everybody on a shared one.
"""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from telling import tell

from mpsd import processes
from tests.hostile.attacker import NOBODY, PYTHON

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
def hanging(count: int) -> Iterator[list[int]]:
    """Processes of another user that keep whoever reads them waiting."""
    attacker = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", HANG, str(NOBODY), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd="/", env={"TMPDIR": "/dev/shm"},
    )  # fmt: skip
    assert attacker.stdin
    assert attacker.stdout
    try:
        pids = [int(attacker.stdout.readline()) for _ in range(count)]
        for pid in pids:
            wait_until(lambda pid=pid: in_the_trap(pid))
        yield pids
    finally:
        attacker.stdin.close()
        attacker.stdout.close()
        attacker.wait(30)


def in_the_trap(pid: int) -> bool:
    """It waits in the kernel, for the answer that never comes."""
    return processes.state(pid) in "DSX" and Path(f"/proc/{pid}/wchan").read_text() == "request_wait_answer"


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


def test_which_reads_of_a_process_wait_for_its_exec() -> None:
    """Debian's kernels of 2026 (6.1.0-56, 6.12.117) close files before exec takes the lock; with others four reads may wait."""
    with hanging(1) as (pid,):
        found = {name: becomes(pid, read) for name, read in READS.items()}
    tell(fact="exec", value=json.dumps(found))
    assert {name for name, what in found.items() if what == "answers"} >= ANSWERS
    waits = {found[name] for name in ("environ", "maps", "kcmp", "pidfd_getfd")}
    assert waits in ({"answers"}, {"killable"})
