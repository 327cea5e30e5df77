"""A customer's client that is stopped while another one faults: all work of its domain stands still, and mpsd reports that."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.machine import Machine
from tests.integration.process import state_of, wait_for
from tests.integration.test_contained import LEAVE, XID
from tests.integration.test_faults import told, until
from tests.integration.test_sentinels import problems, started

pytestmark = pytest.mark.root
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000  # of waitpid(2): threads too


@contextmanager
def stopped_by_a_signal(pid: int) -> Iterator[str]:
    os.kill(pid, signal.SIGSTOP)
    yield "T"
    os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped_by_a_debugger(pid: int) -> Iterator[str]:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    threads = [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    for each in threads:
        assert ptrace(PTRACE_SEIZE, each, None, None) == 0, os.strerror(ctypes.get_errno())
        assert ptrace(PTRACE_INTERRUPT, each, None, None) == 0
        os.waitpid(each, WALL)
    yield "t"
    for each in threads:
        assert ptrace(PTRACE_DETACH, each, None, None) == 0


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [stopped_by_a_signal, stopped_by_a_debugger], ids=["signal", "debugger"])
def test_a_stopped_client_that_keeps_its_domain_is_named(machine: Machine, stopped) -> None:  # type: ignore[no-untyped-def]
    machine.start()
    victim, paused = machine.counter().ready(), machine.counter().ready()
    with told(machine, "client.stopped") as mpsd:
        with stopped(paused.pid) as letter:
            wait_for("it to be stopped", lambda: state_of(paused.pid) == letter)
            machine.client("faulter", "misaligned", "--after", "0.3", "--linger", "60").ready()
            found = until(mpsd, "client.stopped").facts
            assert (found["pid"], found["domain"]) == (paused.pid, "default")
            assert any("stands still" in each for each in problems(machine))
            shown = machine.run("-m", "mpsctl", "why", str(victim.pid), program=Path(sys.executable)).stdout
            assert "its server waits for it" in " ".join(shown.split())
            ticks = len(victim.events("tick"))
            newcomer = machine.counter().ready()
            newcomer.goes_on()
            assert len(victim.events("tick")) == ticks
            assert machine.server_of(newcomer) != machine.server_of(victim)
        assert victim.error() != 0
    newcomer.goes_on()
    wait_for("all well", lambda: not [each for each in problems(machine) if "stands still" in each])
    assert len(machine.journal("client.stopped")) == 1


def test_a_stopped_client_harms_no_domain_in_which_no_other_faults(machine: Machine) -> None:
    machine.configure("[domains]\npoll_seconds = 0.2\n")
    machine.start()
    victim, paused = machine.counter().ready(), machine.counter().ready()
    with stopped_by_a_signal(paused.pid):
        for _ in range(3):
            victim.goes_on()
            assert machine.numbers("get_server_list")
    paused.goes_on()
    assert not machine.journal("client.stopped")


def test_with_a_sentinel_a_stopped_client_keeps_no_other(machine: Machine) -> None:
    """The sentinel keeps the server, whatever becomes of the other one."""
    started(machine, LEAVE, **XID)
    victim, paused = machine.counter().ready(), machine.counter().ready()
    with stopped_by_a_signal(paused.pid):
        machine.client("faulter", "misaligned", "--after", "0.3", "--linger", "60").ready()
        machine.wait_for_journal("domain.contained")
        victim.goes_on()
    paused.goes_on()
    victim.goes_on()
    with machine.mpsd() as mpsd:
        assert "contained" in {each.state for each in mpsd.ask(calls.domain_list()).items}
    assert not machine.journal("client.stopped")
