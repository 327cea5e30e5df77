"""More CUDA programs at a time than mpsd has places for their connections: each gets its turn, and none runs without MPS."""

import os
import signal
import time

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import wait_for

USER = 1000
PLACES, CROWD = 32, 80
SECONDS = 120.0
STOPPED_SECONDS = 3.0


def start_crowd(machine: Machine, uid: int) -> list[Client]:
    return [machine.client("counter", "--seconds", "0.2", uid=uid) for _ in range(CROWD)]


def check_all_were_clients(machine: Machine, crowd: list[Client]) -> None:
    """Wait until all have ended; each has computed, or has got an error, and at no time did one run without MPS."""
    kinds: set[str] = set()

    def have_ended() -> bool:
        kinds.update(machine.kinds().values())
        return all(each.has_ended() for each in crowd)

    wait_for("the end of all", have_ended, SECONDS)
    assert not machine.journal("relay.evicted"), "mpsd closed connections"
    assert "plain" not in kinds
    assert all(each.events("end") or each.events("error") for each in crowd)


def test_a_crowd_of_one_user_never_runs_without_mps(machine: Machine) -> None:
    """mpsd closed 40 of 80 connections: these programs ran without MPS, and so without limits."""
    machine.configure(f"[relay]\nmax_connections = {PLACES}\n")
    machine.start()
    check_all_were_clients(machine, start_crowd(machine, USER))


def test_who_waits_for_a_place_is_listed_and_outlives_mpsd(machine: Machine) -> None:
    """Each waits in a queue that the keeper holds too."""
    machine.configure(f"[relay]\nmax_connections = {PLACES}\n")
    machine.start()
    released, release = os.pipe()
    words = ("--seconds", "600", "--until-release", "--kernel-us", "100000")  # they leave the processors to others
    crowd = [machine.client("counter", *words, uid=USER, stdin=released) for _ in range(CROWD)]
    os.close(released)
    with machine.mpsd() as mpsd:

        def reasons() -> list[str]:
            return [each.reason for each in mpsd.ask(calls.queue_list()).items]

        wait_for("one without a place", lambda: any(why.startswith("relay.max_connections") for why in reasons()), SECONDS)
        machine.counter(uid=USER + 1).ready(SECONDS)
    machine.kill_daemon()
    machine.start()
    with machine.mpsd() as mpsd:
        wait_for("one without a place", lambda: any(why.startswith("relay.max_connections") for why in reasons()), SECONDS)
    os.close(release)
    check_all_were_clients(machine, crowd)


@pytest.mark.parametrize("uid", [0, USER])
def test_clients_that_are_stopped_in_their_handshake_go_on_where_places_are_short(machine: Machine, uid: int) -> None:
    """mpsd closed the connections of those that had sent nothing for long; and all of root's hung, since those that waited for
    admission had all places, and those that were admitted got none for their contexts."""
    machine.configure(f"[relay]\nmax_connections = {PLACES}\nsilent_seconds = 0.5\n")
    machine.start()
    crowd = start_crowd(machine, uid)
    for each in crowd:
        os.kill(each.pid, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    for each in crowd:
        os.kill(each.pid, signal.SIGCONT)
    check_all_were_clients(machine, crowd)
