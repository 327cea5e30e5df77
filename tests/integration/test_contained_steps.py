"""What comes while the watcher contains an exception, on the simulator: between the event and RESUME, and during CLEAR.

test_contained.py has what comes afterwards, test_sentinels.py what comes before.
"""

import os
import signal
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_contained import LEAVE, QUIT_SECONDS, end_of, named, states
from tests.integration.test_sentinels import sentinel, started

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.deadline(90)]
STEPS = {"before RESUME": {"MPSD_SIM_SM_READ_MS": "2000"}, "in CLEAR": {"MPSD_SIM_SM_CLEAR_MS": "2000"}}
SLEEPS = ("230", "35", "115", "101")  # clock_nanosleep and nanosleep, x86-64 and aarch64: the simulator's delay
at_each_step = pytest.mark.parametrize("delays", STEPS.values(), ids=STEPS)


def in_step(machine: Machine, delays: dict[str, str]) -> tuple[Client, Client]:
    """Return a victim and a culprit, at a time when the watcher is in that step."""
    started(machine, LEAVE, **delays)
    victim = machine.counter().ready()
    culprit = machine.client("faulter", "misaligned", "--after", "0.5", "--linger", "60").ready()
    watcher, _ = sentinel(machine)
    wait_for("the step", lambda: Path(f"/proc/{watcher}/syscall").read_text().split()[0] in SLEEPS)
    return victim, culprit


def serves_again(machine: Machine) -> None:
    machine.counter().ready().goes_on()
    assert not machine.bugs()


@at_each_step
@pytest.mark.parametrize("part", [0, 1], ids=["watcher", "stopped client"])
def test_a_part_that_is_killed_ends_it_as_on_stock_mps(machine: Machine, delays: dict[str, str], part: int) -> None:
    victim, _ = in_step(machine, delays)
    before = sentinel(machine)
    os.kill(before[part], signal.SIGKILL)
    assert victim.error() != 0
    wait_for("its end", lambda: not any(map(is_running, before)))
    serves_again(machine)


@at_each_step
def test_the_next_mpsd_finds_it_contained(machine: Machine, delays: dict[str, str]) -> None:
    victim, culprit = in_step(machine, delays)
    machine.kill_daemon()
    machine.start()
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence, states(machine)["default"]) == (culprit.pid, "proven", "contained")
    victim.goes_on()
    serves_again(machine)


@at_each_step
def test_quit_ends_all(machine: Machine, delays: dict[str, str]) -> None:
    in_step(machine, delays)
    done = machine.ask("quit -t 0", seconds=QUIT_SECONDS)
    left = machine.processes("mpsd-sentinel"), machine.processes("nvidia-cuda-mps-server")
    assert (done.returncode, *left) == (0, [], []), f"{done} {end_of(machine)}"


@at_each_step
@pytest.mark.parametrize("is_daemon", [False, True], ids=["server", "vendor daemon"])
def test_a_death_of_the_vendors_part_ends_the_clients(machine: Machine, delays: dict[str, str], is_daemon: bool) -> None:
    victim, _ = in_step(machine, delays)
    before = sentinel(machine)
    server = machine.journal("sentinel.ready")[0]["server"]
    os.kill(machine.vendor_pid("default") if is_daemon else server, signal.SIGKILL)
    assert victim.error() != 0
    wait_for("the sentinel's end", lambda: not any(map(is_running, before)))
    serves_again(machine)
    wait_for("a verdict that does not accuse the victim", lambda: victim.pid not in accused(machine))


def accused(machine: Machine) -> set[int]:
    """Return who is named as the culprit of any fault: not those that end of the server's death."""
    with machine.mpsd() as mpsd:
        found = [mpsd.ask(calls.fault_get(number)) for number in {each["number"] for each in machine.journal("fault.opened")}]
    return {each.culprit.pid for each in found if each.culprit}


@at_each_step
def test_a_customer_that_is_stopped_meanwhile_continues_later(machine: Machine, delays: dict[str, str]) -> None:
    victim, _ = in_step(machine, delays)
    os.kill(victim.pid, signal.SIGSTOP)
    machine.wait_for_journal("domain.contained")
    machine.wait_for_journal("fault.culprit")
    os.kill(victim.pid, signal.SIGCONT)
    victim.goes_on()
    assert states(machine)["default"] == "contained"


@at_each_step
def test_terminate_client_is_refused_or_ends_all(machine: Machine, delays: dict[str, str]) -> None:
    """Before the first report mpsd ends the sentinel for it, so that all clients end, as on stock MPS."""
    victim, culprit = in_step(machine, delays)
    server = machine.journal("sentinel.ready")[0]["server"]
    done = machine.ask(f"terminate_client {server} {culprit.pid}", seconds=QUIT_SECONDS)
    if "answers no command" in done.stdout + done.stderr:
        victim.goes_on()
    else:
        assert victim.error() != 0
    serves_again(machine)
