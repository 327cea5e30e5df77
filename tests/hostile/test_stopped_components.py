"""A stopped component: newcomers go elsewhere, and health reports the problem."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpsd_client import calls

from tests.integration.machine import Machine
from tests.integration.process import state_of, wait_for

HEALTH_SECONDS = 0.1
NEWCOMER_SECONDS = 10.0  # 20 to 30 before; 0.1 to 1.2 now, on a machine that does nothing else
ONE_DOMAIN = "[domains]\nmax_domains = 1\nspares = 0\n"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    wait_for(f"pid {pid} to stop", lambda: state_of(pid) == "T")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def problems(machine: Machine) -> list[str]:
    with machine.mpsd() as mpsd:
        return list(mpsd.ask(calls.health()).problems)


def wait_for_problem(machine: Machine, words: str) -> str:
    """Wait until health reports the problem; each answer comes within 100 ms."""
    with machine.mpsd() as mpsd:

        def look() -> str:
            begun = time.monotonic()
            answer = mpsd.ask(calls.health())
            seconds.append(time.monotonic() - begun)
            return next((each for each in answer.problems if words in each), "")

        seconds: list[float] = []
        found = wait_for(f"the problem '{words}'", look)
        assert sorted(seconds)[len(seconds) // 2] < HEALTH_SECONDS
    return found


def part_of(machine: Machine, part: str) -> int:
    return machine.vendor_pid("default") if part == "vendor daemon" else machine.server()


@pytest.mark.parametrize("part", ["vendor daemon", "vendor server"])
def test_health_queue_and_why_name_the_stopped_process(machine: Machine, part: str) -> None:
    machine.configure(ONE_DOMAIN)
    machine.start()
    machine.counter().ready()
    pid = part_of(machine, part)
    before = problems(machine)
    assert before == ["a client of a further user would wait: all 1 domains are taken: default ready 1/48 uid 0"]
    with stopped(pid):
        found = wait_for_problem(machine, f"its {part}, pid {pid}, is stopped")
        assert f"kill -CONT {pid}" in found
        newcomer = machine.counter()
        with machine.mpsd() as mpsd:
            [entry] = wait_for("the newcomer in the queue", lambda: mpsd.ask(calls.queue_list()).items)
            assert entry.pid == newcomer.pid
            assert f"pid {pid}, is stopped" in entry.reason
            why = mpsd.ask(calls.client_why(newcomer.pid))
            assert (why.state, why.queue and why.queue.reason) == ("waiting", entry.reason)
    newcomer.ready()
    wait_for("the health of before", lambda: problems(machine) == [before[0].replace(" 1/48", " 2/48")])


@pytest.mark.parametrize("part", ["vendor daemon", "vendor server"])
def test_a_stopped_part_delays_no_newcomer_and_no_restart_of_mpsd(machine: Machine, part: str) -> None:
    """A newcomer of the same user goes to the spare.

    An mpsd that started again served no client until a question to the stopped part had timed out (vendor.command_seconds).
    """
    machine.configure(f"[vendor]\ncommand_seconds = {4 * NEWCOMER_SECONDS}\n")
    machine.start()
    client = machine.counter(uid=1000).ready()
    machine.with_spare()
    with stopped(part_of(machine, part)):
        machine.counter(uid=1000).ready(NEWCOMER_SECONDS)
        machine.kill_daemon()
        began = time.monotonic()
        machine.start()
        machine.counter(uid=1001).ready(NEWCOMER_SECONDS)
        assert time.monotonic() - began < 2 * NEWCOMER_SECONDS
        assert "is stopped (SIGSTOP)" in machine.wait_for_journal("domain.failed")["why"]
    client.goes_on()
    wait_for("its domain to be adopted", lambda: client.pid in machine.clients())
