"""Quitting with running clients, with arriving ones, a second quit, a quit without permission; no process is left."""

import os
import re
import signal
import subprocess
import time

import pytest
from mpsd_client import calls

from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, wait_for

pytestmark = pytest.mark.root


def vendor_processes(machine: Machine) -> list[int]:
    """Return the processes of mpsd and those that it started, without the clients."""
    clients = {*machine.processes("counter"), *machine.processes("faulter")}
    return [pid for pid in machine.processes() if pid not in clients]


def test_quit_without_clients_ends_everything_before_it_returns(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    machine.with_spare()
    client.end()
    assert len(machine.processes()) > 4
    pids = {machine.daemon_pid(), *machine.servers(), *map(machine.vendor_pid, machine.domains())}
    assert machine.quit("quit") == 0
    assert machine.processes() == []
    shown = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout
    left = [line for line in shown.splitlines() if re.match(rf"\s*({'|'.join(map(str, pids))})\s", line)]
    assert not [line for line in left if "mps" in line], "the uncollected dead are [nvidia-cuda-mps] <defunct>"
    assert [path.name for path in machine.pipe.iterdir()] == ["cores"]
    assert machine.ask("get_server_list").stderr == "Cannot find MPS control daemon process\n"


def test_quit_waits_for_the_clients_and_questions_are_answered(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    quitting = machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    client.goes_on()
    assert machine.tell("get_default_active_thread_percentage") == "100.0\n"
    wait_for("the client in the list", lambda: machine.clients() == {client.pid})
    client.goes_on()
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(10) == 0
    assert machine.processes() == []


@pytest.mark.slow
def test_whoever_comes_during_quit_gets_an_error_and_never_runs_without_mps(machine: Machine) -> None:
    """From the first moment to the last: a stream of newcomers."""
    machine.start()
    client = machine.counter().ready()
    quitting = machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    newcomers = []
    for _ in range(20):
        newcomers.append(machine.client("smcount"))
        newcomers[-1].status()
    assert [newcomer.error() for newcomer in newcomers] == [805] * 20
    client.goes_on()
    client.end()
    assert quitting.wait(10) == 0


def test_newcomers_of_other_users_get_the_same_error(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    assert [machine.counter(uid=uid).error() for uid in UIDS] == [805, 805]


@pytest.mark.slow
def test_a_client_that_waited_for_a_domain_when_quit_came_gets_the_error(machine: Machine) -> None:
    machine.configure("[domains]\nspares = 0\nmax_domains = 1\n")
    machine.start()
    client = machine.counter().ready()
    waiting = machine.counter(uid=UIDS[0])
    machine.wait_for_journal("client.waiting")
    quitting = machine.begin(typed="quit\n")
    assert waiting.error() == 805
    client.end()
    assert quitting.wait(10) == 0


@pytest.mark.parametrize("seconds", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_quit_t_ends_the_clients_work_with_810(machine: Machine, seconds: int) -> None:
    """The process lives on and sees the error; what it was doing on the GPU is over before anything is killed."""
    machine.start()
    clients = [machine.counter().ready() for _ in range(3)]
    assert machine.quit(f"quit -t {seconds}") == 0
    assert [client.error() for client in clients] == [810, 810, 810]
    assert len(machine.journal("client.terminated")) == 3
    assert not machine.journal("domain.kill")


def test_quit_t_does_not_wait_for_longer_than_the_clients_do(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    quitting = machine.begin(typed="quit -t 99999999999999999999\n")
    machine.wait_for_journal("quit.begins")
    with machine.mpsd() as mpsd:
        ends_at = mpsd.ask(calls.status()).ends_at
    assert ends_at is not None
    assert time.localtime(ends_at).tm_year <= time.localtime().tm_year + 2, "a clock can show it"
    client.end()
    assert quitting.wait(5) == 0


@pytest.mark.slow
def test_two_quits_at_once_end_together_and_the_shorter_wait_counts(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    patient = machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    assert machine.quit("quit -t 0") == 0
    assert patient.wait(5) == 0
    assert client.error() == 810
    assert len(machine.journal("quit.begins")) == 1


def test_another_user_may_not_quit_and_is_told_in_the_vendors_words(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    done = machine.ask("quit -t 0", uid=UIDS[0])
    assert (done.returncode, done.stdout) == (0, "Not enough privilege to execute quit command\n")
    client.goes_on()
    assert machine.tell("get_default_active_thread_percentage") == "100.0\n"


@pytest.mark.slow
def test_quit_after_a_fault_leaves_nothing(machine: Machine) -> None:
    machine.start()
    victim = machine.counter().ready()
    machine.with_spare()
    machine.client("faulter", "trap", "--linger", "60").wait("result")
    machine.counter().ready()
    assert victim.error()
    assert machine.quit("quit -t 0") == 0
    assert not vendor_processes(machine)


@pytest.mark.slow
def test_quit_while_a_vendor_daemon_hangs_kills_it_and_says_so(machine: Machine) -> None:
    """mpsd cannot answer any more; the exit status carries the result."""
    machine.configure("[vendor]\ncommand_seconds = 0.5\nstop_seconds = 1.0\n")
    machine.start()
    machine.client("smcount").status()
    os.kill(machine.vendor_pid("default"), signal.SIGSTOP)
    machine.quit("quit -t 0", seconds=20)
    wait_for("the end of all processes", lambda: not machine.processes())
    assert machine.journal("domain.kill")


@pytest.mark.slow
def test_a_server_that_outlives_its_daemon_is_ended_too(machine: Machine) -> None:
    """Slurm takes a node down for one process that is left."""
    machine.configure("[vendor]\ncommand_seconds = 0.5\nstop_seconds = 1.0\n")
    machine.start()
    machine.counter().ready()
    server = machine.server()
    os.kill(server, signal.SIGSTOP)
    machine.quit("quit -t 0", seconds=30)
    assert not is_running(server)


@pytest.mark.slow
def test_a_stopped_server_with_many_clients_does_not_hold_up_quit(machine: Machine) -> None:
    """Its user may stop it.  Each client took 10 s, so that 12 of them outlasted TimeoutStopSec= of systemd."""
    machine.configure("[vendor]\ncommand_seconds = 0.5\nstop_seconds = 1.0\n")
    machine.start()
    for _ in range(6):
        machine.counter(uid=UIDS[0]).ready()
    os.kill(machine.server(), signal.SIGSTOP)
    machine.quit("quit -t 0", seconds=30)
    assert not vendor_processes(machine)
    tried = machine.journal("client.not_terminated")
    assert 1 <= len(tried) <= 4, "each takes command_seconds at least, and a domain may be silent for three times that"


@pytest.mark.slow
def test_quit_right_after_kill_9_ends_what_the_dead_mpsd_had_started(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    machine.with_spare()
    machine.kill_daemon()
    machine.start()
    assert machine.quit("quit -t 0") == 0
    assert not vendor_processes(machine)


@pytest.mark.slow
def test_the_next_daemon_starts_at_once_and_afresh(machine: Machine) -> None:
    machine.start()
    for _ in range(2):
        machine.client("smcount").status()
        assert machine.quit("quit") == 0
        machine.start()
    assert machine.servers() == []
