"""A user whose servers stand still: commands about all clients wait for all these domains at once, and answer without them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpsd_client import Selector, calls

from tests.hostile.test_stopped_components import stopped
from tests.integration.machine import UIDS, Machine

OWNER, OTHER = UIDS[0], UIDS[1]
DOMAINS = 4
SECONDS = 5.0  # vendor.command_seconds
MOST_SECONDS = 2.5 * SECONDS  # with one of them each command takes 6 s; it took 22 s with all


@contextmanager
def standing_still(machine: Machine) -> Iterator[int]:
    """Let all servers of one user stand still, and return the pid of another user's server."""
    with machine.mpsd() as mpsd:
        for token in _tokens():
            mpsd.ask(calls.lease_create("own", Selector.of_token(token), sm_percent=5, domain="own", owner_uid=OWNER))
    silent = [machine.server_of(machine.counter(uid=OWNER, MPSD_LEASE=token).ready()) for token in _tokens()]
    other = machine.server_of(machine.counter(uid=OTHER).ready())
    for pid in silent:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield other
    finally:
        for pid in silent:
            os.kill(pid, signal.SIGCONT)


def _tokens() -> list[str]:
    return [f"{number:016}" for number in range(DOMAINS)]


def test_commands_wait_for_all_of_them_at_once(machine: Machine) -> None:
    """Each command about all waited 5 s for each of them."""
    machine.start()
    with standing_still(machine) as other:
        for line in ("ps", "get_device_client_list", "device_query", "set_default_active_thread_percentage 90"):
            began = time.monotonic()
            done = machine.ask(line, seconds=60)
            assert time.monotonic() - began < MOST_SECONDS, line
            if line == "ps":
                assert (done.returncode, str(other) in done.stdout) == (1, True), "only parts are missing"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_end_of_another_users_client_waits_for_none_of_them(machine: Machine, is_restarted: bool) -> None:
    """Each look at the clients, of which a stop has several, took 5 to 15 s: longer than a container may take to end."""
    machine.start()
    with standing_still(machine):
        client = machine.counter(uid=OTHER).ready()
        if is_restarted:
            machine.kill_daemon()
            machine.start()
        with machine.mpsd(uid=OTHER) as mpsd:
            mpsd.timeout_seconds = 120
            began = time.monotonic()
            report = mpsd.ask(calls.client_stop(client.process.pid))
            assert time.monotonic() - began < SECONDS
        [stopped_one] = report.processes
        assert (stopped_one.has_ended, stopped_one.steps[0]) == (True, "terminate")  # on a busy machine SIGKILL can follow


def test_a_restarted_mpsd_kills_no_client_in_one_of_them(machine: Machine) -> None:
    """It knew none of its clients before its first answer, and sent SIGKILL without having ended their work."""
    machine.configure("[vendor]\ncommand_seconds = 1.0\n")
    machine.start()
    client = machine.counter(uid=OWNER).ready()
    with stopped(machine.server_of(client)):
        machine.kill_daemon()
        machine.start()
        with machine.mpsd(uid=OWNER) as mpsd:
            [left] = mpsd.ask(calls.client_stop(client.process.pid)).processes
        assert (left.has_ended, left.steps) == (False, ())
        assert f"domain {left.domain} does not answer" in (left.why or "")
    client.goes_on()
