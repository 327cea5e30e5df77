"""What comes while the watcher contains an exception, on the simulator: between the event and RESUME.

test_contained.py has what comes afterwards, test_sentinels.py what comes before.
"""

import os
import signal
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.cgroup import freeze, open_cgroup
from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_contained import LEAVE, QUIT_SECONDS, accused, end_of, named, states
from tests.integration.test_sentinels import sentinel, started

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.deadline(90)]
BEFORE_RESUME = {"MPSD_SIM_SM_READ_MS": "2000"}
SLEEPS = ("230", "35", "115", "101")  # clock_nanosleep and nanosleep, x86-64 and aarch64: the simulator's delay


def in_step(machine: Machine) -> tuple[Client, Client]:
    """Return a victim and a culprit, at a time when the watcher reads what the SMs report."""
    started(machine, LEAVE, **BEFORE_RESUME)
    return fault_in_step(machine)


def fault_in_step(machine: Machine) -> tuple[Client, Client]:
    victim = machine.counter().ready()
    culprit = machine.client("faulter", "misaligned", "--after", "0.5", "--linger", "60").ready()
    watcher, _ = sentinel(machine)
    wait_for("the step", lambda: Path(f"/proc/{watcher}/syscall").read_text().split()[0] in SLEEPS)
    return victim, culprit


def serves_again(machine: Machine) -> None:
    machine.counter().ready().goes_on()
    assert not machine.bugs()


@pytest.mark.parametrize("part", [0, 1], ids=["watcher", "stopped client"])
def test_a_part_that_is_killed_ends_it_as_on_stock_mps(machine: Machine, part: int) -> None:
    victim, _ = in_step(machine)
    before = sentinel(machine)
    os.kill(before[part], signal.SIGKILL)
    assert victim.error() != 0
    wait_for("its end", lambda: not any(map(is_running, before)))
    serves_again(machine)


def test_the_next_mpsd_finds_it_contained(machine: Machine) -> None:
    victim, culprit = in_step(machine)
    machine.kill_daemon()
    machine.start()
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence, states(machine)["default"]) == (culprit.pid, "proven", "contained")
    victim.goes_on()
    serves_again(machine)


def test_quit_ends_all(machine: Machine) -> None:
    in_step(machine)
    done = machine.ask("quit -t 0", seconds=QUIT_SECONDS)
    left = machine.processes("mpsd-sentinel"), machine.processes("nvidia-cuda-mps-server")
    assert (done.returncode, *left) == (0, [], []), f"{done} {end_of(machine)}"
    assert not machine.journal("domain.silent"), "it waited for a server that answers nothing"


@pytest.mark.parametrize("is_daemon", [False, True], ids=["server", "vendor daemon"])
def test_a_death_of_the_vendors_part_ends_the_clients(machine: Machine, is_daemon: bool) -> None:
    victim, _ = in_step(machine)
    before = sentinel(machine)
    server = machine.journal("sentinel.ready")[0]["server"]
    os.kill(machine.vendor_pid("default") if is_daemon else server, signal.SIGKILL)
    assert victim.error() != 0
    wait_for("the sentinel's end", lambda: not any(map(is_running, before)))
    serves_again(machine)
    wait_for("a verdict that does not accuse the victim", lambda: victim.pid not in accused(machine))


def test_a_customer_that_is_stopped_meanwhile_continues_later(machine: Machine) -> None:
    victim, _ = in_step(machine)
    os.kill(victim.pid, signal.SIGSTOP)
    machine.wait_for_journal("domain.contained")
    machine.wait_for_journal("fault.culprit")
    os.kill(victim.pid, signal.SIGCONT)
    victim.goes_on()
    assert states(machine)["default"] == "contained"


@pytest.mark.parametrize("with_culprit", [False, True], ids=["a victim", "the culprit and a victim"])
def test_customers_that_are_frozen_continue_later(machine: Machine, with_culprit: bool) -> None:
    victim, culprit = in_step(machine)
    with open_cgroup() as cgroup:
        freeze(cgroup, victim, *([culprit] if with_culprit else []))
        machine.wait_for_journal("domain.contained")
        found = named(machine)
        assert found.culprit
        assert found.culprit.pid == culprit.pid
        (cgroup / "cgroup.freeze").write_text("0")
        victim.goes_on()
        assert states(machine)["default"] == "contained"


def test_a_second_exception_that_waits_for_resume_ends_all(machine: Machine) -> None:
    started(machine, LEAVE, **BEFORE_RESUME)
    gate, end = os.pipe()
    second = machine.client("faulter", "trap", "--gate", "--linger", "60", stdin=gate).ready()
    os.close(gate)
    victim, first = fault_in_step(machine)
    os.close(end)
    assert victim.error() != 0
    assert second.wait("result")["code"] == 719
    wait_for("both faults", lambda: len(machine.journal("fault.opened")) == 2)
    wait_for("a verdict", lambda: accused(machine) == {first.pid})
    serves_again(machine)


@pytest.mark.parametrize("command", ["terminate_client {server} {culprit}", "shutdown_server {server}"])
def test_a_command_that_would_end_the_sentinel_is_refused(machine: Machine, command: str) -> None:
    """Also before the watcher has reported the exception."""
    victim, culprit = in_step(machine)
    server = machine.journal("sentinel.ready")[0]["server"]
    done = machine.ask(command.format(server=server, culprit=culprit.pid), seconds=QUIT_SECONDS)
    assert "answers no command" in done.stdout + done.stderr
    victim.goes_on()
    assert states(machine)["default"] == "contained"
    serves_again(machine)


def test_a_forced_shutdown_ends_all(machine: Machine) -> None:
    victim, _ = in_step(machine)
    server = machine.journal("sentinel.ready")[0]["server"]
    assert machine.ask(f"shutdown_server {server} -f", seconds=QUIT_SECONDS).returncode == 0
    assert victim.error() != 0
    serves_again(machine)


def test_stop_ends_a_client_alone(machine: Machine) -> None:
    """It is asked for by terminate_client before the first report, and then by a signal."""
    victim, culprit = in_step(machine)
    with machine.mpsd() as mpsd:
        [done] = mpsd.ask(calls.client_stop(pid=culprit.pid)).processes
    assert done.has_ended
    victim.goes_on()
    assert states(machine)["default"] == "contained"
