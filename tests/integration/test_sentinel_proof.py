"""The self-test of the sentinel, on the simulator: at the first start, remembered, and by `mpsd check --gpu`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import calls

from mpsd.check.containment_proof import FILE
from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_sentinels import problems, started

pytestmark = pytest.mark.root
TESTED = '[sentinel]\nmode = "on"\n'
REQUIRED = '[sentinel]\nmode = "required"\nstart_seconds = 2.0\n'
BROKEN = {"MPSD_SIM_SM_EVENT_DELAY_MS": "600000"}  # the driver's event never comes
CHECK = (sys.executable, "-m", "mpsd", "check", "--gpu", "--json")


def sentinels(machine: Machine) -> str:
    with machine.mpsd() as mpsd:
        return str(mpsd.ask(calls.status()).facts["sentinels"])


def check(machine: Machine, **variables: str) -> tuple[int, dict[str, Any]]:
    done = machine.run(*CHECK[1:], program=Path(CHECK[0]), seconds=60.0, **variables)
    return done.returncode, json.loads(done.stdout)["findings"][-1]


def test_the_first_start_proves_it_and_the_next_one_remembers(machine: Machine) -> None:
    started(machine, TESTED)
    wait_for("the end of the test", lambda: sentinels(machine) == "on, tested here", seconds=40.0)
    machine.counter().ready()
    machine.wait_for_journal("sentinel.ready")
    assert len(machine.journal("sentinel.test")) == 1
    assert os.stat(machine.state / FILE).st_mode & 0o777 == 0o600
    assert not list(machine.state.glob("test-*"))
    machine.kill_daemon()
    machine.start()
    wait_for("the proof to be read", lambda: sentinels(machine) == "on, tested here")
    assert len(machine.journal("sentinel.test")) == 1


@pytest.mark.slow
def test_where_it_fails_sentinels_are_off_until_it_succeeds(machine: Machine) -> None:
    started(machine, TESTED, **BROKEN)
    why = machine.wait_for_journal("sentinel.off", seconds=40.0)["why"]
    assert "did not report CONTAINED" in why
    machine.counter().ready()
    assert not machine.journal("sentinel.ready")
    assert any("sentinels are off" in each for each in problems(machine))
    assert "the self-test failed" in sentinels(machine)
    assert machine.ask("quit -t 0").returncode == 0
    machine.start()
    wait_for("another test", lambda: sentinels(machine) == "on, tested here", seconds=40.0)


@pytest.mark.slow
def test_where_it_is_required_and_fails_clients_wait(machine: Machine) -> None:
    started(machine, REQUIRED, **BROKEN)
    machine.wait_for_journal("sentinel.off", seconds=40.0)
    client = machine.counter()
    machine.wait_for_journal("limits.not_set")
    assert not client.events("ready")


@pytest.mark.slow
def test_a_test_that_could_not_be_made_is_no_failure(machine: Machine) -> None:
    """A user who filled the GPU at that moment kept all clients out until the next start of mpsd."""
    started(machine, REQUIRED, MPSD_SIM_MEMORY_MIB="1700")
    assert "got no context" in machine.wait_for_journal("sentinel.off", seconds=40.0)["why"]
    assert not (machine.state / FILE).exists()


@pytest.mark.slow
def test_check_reports_it(machine: Machine) -> None:
    status, found = check(machine)
    assert (status, found["area"], found["grade"]) == (0, "sentinel test", "good")
    assert "an SM exception was contained" in found["found"]
    machine.configure(REQUIRED)
    status, found = check(machine, **BROKEN)
    assert (status, found["grade"]) == (1, "bad")
    assert not machine.processes()


@pytest.mark.slow
def test_a_test_that_is_killed_leaves_nothing(machine: Machine) -> None:
    with subprocess.Popen(CHECK, env=machine.variables | BROKEN, stdout=subprocess.DEVNULL) as test:
        wait_for("its three clients", lambda: len(machine.processes("mpsd-sentinel")) == 5)
        test.send_signal(signal.SIGKILL)
    wait_for("the end of all", lambda: not machine.processes())
