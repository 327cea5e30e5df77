"""mpsd's event loop has a better place on the processors than what it starts."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from mpsd.app.priority import raise_priority
from tests.integration.machine import FRONT_END, PROGRAM, Machine

MAY_RAISE = os.geteuid() == 0
OWN = os.getpriority(os.PRIO_PROCESS, 0)
needs_zero = pytest.mark.skipif(OWN != 0, reason=f"the tests run with the nice value {OWN}, which mpsd would keep")


def nice_of(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def nices_of(pids: Iterable[int]) -> set[int]:
    """Return the nice values of those that run: a helper of mpsd's may have ended."""
    found = set()
    for pid in pids:
        with suppress(ProcessLookupError):
            found.add(nice_of(pid))
    return found


@needs_zero
@pytest.mark.root
def test_only_the_event_loop_is_raised(machine: Machine) -> None:
    """Vendor daemons, servers, the keeper, clients and mpsd's other threads are not."""
    machine.start()
    client = machine.client("hold").ready()
    daemon = machine.daemon_pid()
    assert nice_of(daemon) == -10
    assert {nice_of(int(thread.name)) for thread in Path(f"/proc/{daemon}/task").iterdir() if int(thread.name) != daemon} <= {0}
    others = set(machine.processes()) - {daemon}
    assert {client.pid, machine.keeper_pid(), machine.server(), machine.vendor_pid("default")} <= others
    assert nices_of(others) == {0}


@needs_zero
@pytest.mark.root
def test_an_option_leaves_it_as_it_is(machine: Machine) -> None:
    machine.configure("nice = 0\n")
    machine.start()
    assert nice_of(machine.daemon_pid()) == 0


def test_a_value_that_somebody_gave_it_is_kept(machine: Machine) -> None:
    script = machine.place / "nice"
    script.write_text(f'#!/bin/sh\nexec nice -n 5 {FRONT_END} "$@"\n')
    script.chmod(0o755)
    done = machine.run("-d", program=script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {nice_of(pid) for pid in [machine.daemon_pid(), *machine.processes(PROGRAM)]} == {min(19, OWN + 5)}


@pytest.mark.skipif(MAY_RAISE, reason="root may raise it")
def test_without_privilege_it_stays() -> None:
    raise_priority(-10)
    assert nice_of(0) == OWN
