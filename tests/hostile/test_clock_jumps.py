"""The machine's clock is set while mpsd runs, by two days in each direction.

CLOCK_REALTIME is that of the whole machine, which other programs use, and namespaces cannot replace it. So mpsd runs with a
`time.time` that adds an offset from a file; its monotonic clock, and the clocks of SQLite and the kernel, do not change.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from mpsd_client import Client, Selector, calls

from tests.integration.machine import Machine
from tests.integration.process import wait_for

DAYS_SECONDS = 2 * 86_400.0
LOOK_SECONDS = 1.0
GRANULE = 2 << 20
MOST_BUSY = 0.7  # of that time; a loop that waits for a past moment takes all of it
SHIFTED = """
import runpy
import sys
import time

real, real_ns, path = time.time, time.time_ns, {path!r}


def shift():
    with open(path) as file:
        return float(file.read())


time.time = lambda: real() + shift()
time.time_ns = lambda: real_ns() + int(shift() * 1e9)
sys.argv = sys.argv[3:]  # without -I -m mpsd
runpy.run_module("mpsd", run_name="__main__", alter_sys=True)
"""


class Clock:
    """That of a machine's mpsd, from its start on."""

    def __init__(self, machine: Machine) -> None:
        self._file = machine.place / "shift"
        self._machine, self._python = machine, machine.place / "python"
        program = machine.place / "shifted.py"
        program.write_text(SHIFTED.format(path=str(self._file)))
        self._python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        self._python.chmod(0o755)
        self.set(0.0)
        self.start()

    def start(self) -> None:
        self._machine.start(MPSD_PYTHON=str(self._python))

    def set(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)


def busy_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def leases(mpsd: Client) -> set[str]:
    return {each.name for each in mpsd.pages(calls.lease_list())}


def arenas(mpsd: Client) -> set[str]:
    return {each.name for each in mpsd.pages(calls.arena_list())}


def convicted(mpsd: Client) -> set[str]:
    return {each.key for each in mpsd.ask(calls.blame_list()).items if each.standing == "convicted"}


@pytest.mark.parametrize("seconds", [DAYS_SECONDS, -DAYS_SECONDS], ids=["forward", "back"])
def test_a_clock_that_is_set_harms_no_client_and_ends_what_has_a_time_as_documented(machine: Machine, seconds: float) -> None:
    clock = Clock(machine)
    client = machine.counter(uid=1000).ready()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("for-ever", Selector.of_uid(1001), sm_percent=10))
        mpsd.ask(calls.lease_create("for-an-hour", Selector.of_uid(1002), sm_percent=10, ttl_seconds=3600.0))
        mpsd.ask(calls.arena_create("for-ever", "0", GRANULE))
        mpsd.ask(calls.arena_create("for-an-hour", "0", GRANULE, ttl_seconds=3600.0))
        machine.client("faulter", "oob_write", uid=1003).ready()
        culprits = wait_for("the conviction", lambda: convicted(mpsd))
        machine.counter(uid=1004).ready()
        clock.set(seconds)
        for uid in (1000, 1001, 1004):
            machine.counter(uid=uid).ready()
        client.goes_on()
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems)
        begin, before = time.monotonic(), busy_seconds(machine.daemon_pid())
        wait_for("a while", lambda: time.monotonic() > begin + LOOK_SECONDS)
        assert busy_seconds(machine.daemon_pid()) - before < MOST_BUSY * (time.monotonic() - begin)
    machine.kill_daemon()  # one that runs looks at least once a minute for what is over, another one at once
    clock.start()
    client.goes_on()
    with machine.mpsd() as mpsd:
        expected = {"for-ever"} if seconds > 0 else {"for-ever", "for-an-hour"}
        wait_for("the leases that there are", lambda: leases(mpsd) == expected)
        wait_for("the arenas that there are", lambda: arenas(mpsd) == expected)
        kept = set() if seconds > 0 else culprits
        wait_for("quarantine to be over after its hour, and not before", lambda: convicted(mpsd) == kept)
        clock.set(0.0)
        machine.counter(uid=1000).ready()
        client.goes_on()
        assert (leases(mpsd), arenas(mpsd)) == (expected, expected)
        assert seconds > 0 or convicted(mpsd) == culprits
    assert machine.quit() == 0


def audited(machine: Machine) -> set[str]:
    """Return the names of the leases whose creation is in the audit of operators."""
    lines = [line for path in machine.log_directory.glob("audit.log*") for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return {each["what"]["name"] for each in found if each.get("method") == "lease.create"}


@pytest.mark.parametrize("seconds", [(DAYS_SECONDS,), (DAYS_SECONDS, -DAYS_SECONDS)], ids=["forward", "back and forth"])
def test_a_clock_that_is_set_rotates_no_line_of_the_audit_out(machine: Machine, seconds: tuple[float, ...]) -> None:
    """The time of a file's last line is the kernel's, or a file server's: behind mpsd's clock, each line rotated the file."""
    machine.configure("[log]\nmax_days = 1\n")
    clock = Clock(machine)
    names = {f"lease-{number}" for number in range(12)}
    with machine.mpsd() as mpsd:
        for number, name in enumerate(sorted(names)):
            clock.set(seconds[number % len(seconds)])
            mpsd.ask(calls.lease_create(name, Selector.of_uid(1001), sm_percent=1))
    assert machine.quit() == 0
    assert audited(machine) == names
    assert (machine.log_directory / "audit.log.1").exists(), "an old file is rotated once"
