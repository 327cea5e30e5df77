"""mpsd ends no process on account of a user after that process has executed a program of another user's (setuid).

A process stays the same one then, with its pid and its pidfds, and a child that it forked before keeps its connection.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import Refused, calls

from tests.hostile.attacker import NOBODY
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for

# A member of a service that serves.  It becomes root's; its child reports with the connection that it has inherited.
MEMBER = """
import os, sys, time
from mpsd_client import Client, calls
mpsd = Client(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/mpsd.sock", timeout_seconds=20)
mpsd.ask(calls.arena_create("mine", "0", 4 * (2 << 20)))
opened = mpsd.ask(calls.arena_open("mine", "read"))
mpsd.ask(calls.service_join(opened.id, 0, 0.0))
told = mpsd.ask(calls.service_ready(opened.id))
while told.order != "serve":
    told = mpsd.ask(calls.service_follow(opened.id, told.serial, 1.0))
mpsd.ask(calls.service_serving(opened.id, told.generation))
if os.fork():
    os.execv(sys.argv[1], [sys.argv[1]])
sys.stdin.readline()
try:
    os.kill(os.getppid(), 9)
except PermissionError:
    mpsd.ask(calls.service_failed(opened.id, "as I like"))
    print("reported", flush=True)
sys.stdin.readline()
"""
# Preloaded into a client: on SIGUSR1 it executes a program of root's.
BECOMES = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void become(int number)
{
	char *program = getenv("MPSD_TEST_ROOTS");
	sigset_t none;

	(void)number;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	execl(program, program, (char *)0);
	_exit(9);
}

__attribute__((constructor)) static void begin(void)
{
	signal(SIGUSR1, become);
}
"""


def is_roots(pid: int) -> bool:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")]
    return line.split()[1:4] == ["0", "0", "0"]


@contextmanager
def member(machine: Machine, python: Path, program: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a member of the user's service, until it is root's."""
    environment = machine.variables | {"PYTHONPATH": str(Path("clients/python").resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [str(python), "-c", MEMBER, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        user=NOBODY, group=NOBODY, extra_groups=[], env=environment,
    ) as process:  # fmt: skip
        try:
            wait_for("it to be root's", lambda: is_roots(process.pid))
            yield process
        finally:
            process.kill()


def test_a_members_report_ends_no_program_of_roots(machine: Machine, strangers_python: Path, roots_program: Path) -> None:
    """Its user may not kill it, and may not have mpsd do that either: the service waits, with the reason in the log."""
    machine.start()
    with member(machine, strangers_python, roots_program) as process:
        assert process.stdin
        assert process.stdout
        with machine.mpsd(NOBODY) as mpsd, pytest.raises(Refused):
            mpsd.ask(calls.client_stop(process.pid))
        process.stdin.write("report\n")
        process.stdin.flush()
        assert process.stdout.readline() == "reported\n"
        wait_for("mpsd to try", lambda: machine.journal("service.not_ended") or not is_running(process.pid))
        assert is_running(process.pid)
        assert {entry["why"] for entry in machine.journal("service.not_ended")} == {"it is another user's by now"}


def test_a_culprit_that_has_become_roots_is_left(machine: Machine, roots_program: Path) -> None:
    """mpsd ends the culprit of a fault some seconds after it is known."""
    source, preloaded = roots_program.with_name("becomes.c"), roots_program.with_name("becomes.so")
    source.write_text(BECOMES)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", preloaded, source], check=True)
    machine.start()
    client = machine.client(
        "faulter", "oob_write", "--linger", "600", "--after", "0.3", uid=NOBODY,
        LD_PRELOAD=str(preloaded), MPSD_TEST_ROOTS=str(roots_program),
    )  # fmt: skip

    def deeds() -> list[str]:
        with machine.mpsd() as mpsd:
            [fault] = mpsd.ask(calls.fault_list()).items
            return [each.text for each in mpsd.ask(calls.fault_get(fault.number)).deeds]

    with machine.mpsd() as mpsd:
        wait_for("a culprit", lambda: [each for each in mpsd.ask(calls.fault_list()).items if each.culprit])
    os.kill(client.pid, signal.SIGUSR1)
    wait_for("it to be root's", lambda: is_roots(client.pid))
    wait_for("mpsd to try", lambda: any("the culprit" in each for each in deeds()) or not is_running(client.pid))
    assert is_running(client.pid)
    assert [each for each in deeds() if "the culprit" in each] == [
        f"the culprit, pid {client.pid}, could not be ended: it is another user's by now"
    ]
