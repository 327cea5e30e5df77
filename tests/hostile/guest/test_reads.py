"""A process of another user that waits in exec: which reads of it wait too, and which parts of mpsd continue all the same.

Runs in a separate virtual machine, since on a shared one it would hang `ps` for all users.
"""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from daemon import START_SECONDS, open_machine, start
from mpsd_client import calls
from telling import tell

from mpsd.host import cgroups, processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import StartFacts
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import ProcessId
from tests.hostile.attacker import NOBODY, PYTHON
from tests.integration.machine import Machine

HANG = Path(__file__).with_name("hang.py").read_text()
SECONDS = 6.0  # a read that answers takes milliseconds, here too
OURS = ProcessId(os.getpid(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
LIBC = ctypes.CDLL(None, use_errno=True)
KCMP, PIDFD_GETFD = 312, 438


def contents(name: str) -> Callable[[int], object]:
    return lambda pid: Path(f"/proc/{pid}/{name}").read_bytes()


READS: dict[str, Callable[[int], object]] = {
    **{name: contents(name) for name in ("stat", "status", "cgroup", "comm", "environ", "maps", "cmdline", "statm")},
    "the directory": lambda pid: os.stat(f"/proc/{pid}"),
    "fd": lambda pid: [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")],
    "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "ns": lambda pid: os.readlink(f"/proc/{pid}/ns/pid"),
    "pidfd_open": os.pidfd_open,
    "kcmp": lambda pid: LIBC.syscall(KCMP, os.getpid(), pid, 0, 0, 0),
    "pidfd_getfd": lambda pid: LIBC.syscall(PIDFD_GETFD, os.pidfd_open(pid), 0, 0),
}
ANSWERS = {"status", "cgroup", "comm", "statm", "the directory", "pidfd_open"}  # with every kernel
OF_MPSD: dict[str, Callable[[int], object]] = {  # what mpsd asks on its event loop
    "process_id": processes.process_id,
    "is_alive": lambda pid: processes.is_alive(ProcessId(pid, 1)),
    "open_pidfd": lambda pid: processes.open_pidfd(ProcessId(pid, 1)),
    "linked_file": lambda pid: processes.linked_file(pid, "exe"),
    "pid_namespaces": processes.pid_namespaces,
    "numbers": lambda pid: processes.numbers(pid, ["/dev/null"]),
    "state": processes.state,
    "parent": processes.parent,
    "owner": processes.owner,
    "command": processes.command,
    "read_cgroup": cgroups.read_cgroup,
}


@contextmanager
def hanging(count: int, door: str = "") -> Iterator[list[int]]:
    """Yield processes of another user that make their readers wait."""
    attacker = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", HANG, str(NOBODY), str(count), door], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd="/", env={"TMPDIR": "/dev/shm"},
    )  # fmt: skip
    assert attacker.stdin
    assert attacker.stdout
    try:
        yield [int(attacker.stdout.readline()) for _ in range(count)]
    finally:
        attacker.stdin.close()
        attacker.stdout.close()
        attacker.wait(60)


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


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What becomes of each read while a process waits in exec."""
    with hanging(1) as (pid,):
        what = {name: becomes(pid, read) for name, read in READS.items()}
    tell(fact="exec", value=json.dumps(what))
    return what


@pytest.mark.deadline(400)
def test_reads_that_wait_for_an_exec_can_be_killed(found: dict[str, str]) -> None:
    assert set(found.values()) <= {"answers", "killable"}
    assert {name for name, what in found.items() if what == "answers"} >= ANSWERS


def test_what_mpsd_asks_by_itself_ends_in_time() -> None:
    """For a user whose process waits in exec, and for another one."""
    taken: dict[str, float] = {}
    with hanging(1) as (pid,):
        for name, ask in OF_MPSD.items():
            began = time.monotonic()
            with suppress(Unanswered):
                ask(pid)
            taken[name] = round(time.monotonic() - began, 3)
            assert processes.is_alive(OURS)
            assert processes.process_id(OURS.pid) == OURS
    tell(fact="of mpsd", value=json.dumps(taken))
    assert max(taken.values()) < SECONDS, taken


def reads(inspector: Inspector, pid: int) -> StartFacts | None:
    """Return the inspector's answer, at the latest shortly after its own deadline."""
    began = time.monotonic()
    with suppress(Unreadable):
        return inspector.facts_now(pid, [])
    assert time.monotonic() - began < SECONDS
    return None


@pytest.mark.deadline(300)
def test_the_inspector_answers_for_others_while_a_read_waits(found: dict[str, str]) -> None:
    """Each read of a process in exec ends by its deadline, and leaves no process behind."""
    inspector = Inspector()
    inspector.start()
    try:
        with hanging(1) as (pid,):
            for _ in range(5):
                assert (reads(inspector, pid) is None) or found["environ"] == "answers"
                until = time.monotonic() + START_SECONDS
                while reads(inspector, os.getpid()) is None:  # its deadline of a second is little for an emulated machine
                    assert time.monotonic() < until, "it answers for nobody"
        children = Path(f"/proc/{inspector.pid}/task/{inspector.pid}/children")
        until = time.monotonic() + 60
        while children.read_text().strip():
            assert time.monotonic() < until, "a child that was killed is still there"
            time.sleep(0.1)
    finally:
        inspector.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with open_machine() as made:
        yield made


@pytest.mark.deadline(500)
def test_mpsd_serves_others_while_clients_hang_in_exec(machine: Machine) -> None:
    """Six processes of another user connect and exec for ever: mpsd answers, a newcomer starts, the first client goes on."""
    start(machine)
    first = machine.counter().ready(START_SECONDS)
    with hanging(6, str(machine.pipe / "control")) as pids:
        began = time.monotonic()
        with machine.mpsd() as mpsd:
            assert mpsd.ask(calls.health())
        answered = time.monotonic() - began
        second = machine.counter().ready(START_SECONDS)
        seconds = {"health": round(answered, 2), "newcomer": round(time.monotonic() - began - answered, 2)}
        tell(fact="mpsd", value=json.dumps({"hanging": len(pids), **seconds}))
        for each in (first, second):
            each.goes_on(60)
    assert machine.bugs() == []
