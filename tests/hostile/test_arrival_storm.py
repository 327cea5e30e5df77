"""A storm of arrivals, with a client of a further user each second: while one of these hangs, `health` is not ok.

pytest -m slow tests/hostile/test_arrival_storm.py -s
"""

import os
import time
from dataclasses import dataclass

import pytest
from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import wait_for

ARRIVALS, USERS = 240, 80
FIRST_UID, FIRST_PROBE_UID = 20_000, 30_000
JOB = ("--seconds", "0.1", "--ms", "50", "--kernel-us", "1000")
PROBE_SECONDS = 1.0
HANG_SECONDS = 10.0  # as in test_random_days.py: a newcomer that has not begun by then hangs
END_SECONDS = 240.0


@dataclass
class Probe:
    """A client with its own user. All times in seconds since its start."""

    client: Client
    since: float
    named: float = 0.0  # when health last had a problem before it began
    unseen: float = 0.0  # the longest time for which health was ok, in a row, and it had not begun
    seconds: float = 0.0  # when it had begun


def look(mpsd: Mpsd, probes: list[Probe]) -> None:
    problems, now = mpsd.ask(calls.health()).problems, time.monotonic()
    for probe in probes:
        if probe.seconds:
            continue
        if not probe.client.is_silent():  # asked after health: one that begins in between is not held against it
            probe.seconds = now - probe.since
        elif problems:
            probe.named = now - probe.since
        else:
            probe.unseen = max(probe.unseen, now - probe.since - probe.named)


@pytest.mark.deadline(2 * END_SECONDS)
def test_health_is_not_ok_while_a_newcomer_hangs_in_a_storm(machine: Machine) -> None:
    machine.start()
    coming = [machine.client("counter", *JOB, uid=FIRST_UID + number % USERS) for number in range(ARRIVALS)]
    probes: list[Probe] = []
    began = time.monotonic()
    with machine.mpsd() as mpsd:

        def is_over() -> bool:
            if time.monotonic() - began >= PROBE_SECONDS * len(probes) and not all(each.has_ended() for each in coming):
                probes.append(Probe(machine.client("counter", *JOB, uid=FIRST_PROBE_UID + len(probes)), time.monotonic()))
            look(mpsd, probes)
            return all(each.has_ended() for each in coming) and all(probe.seconds for probe in probes)

        wait_for("the end of the storm", is_over, END_SECONDS)
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems)
    for probe in probes:
        named, unseen = f"named a problem until {probe.named:4.1f} s", f"was ok for {probe.unseen:3.1f} s"
        print(f"began after {probe.seconds:4.1f} s; health {named}, {unseen}")
    seconds, load = time.monotonic() - began, os.getloadavg()[0]
    print(f"{ARRIVALS} arrivals of {USERS} users, {len(probes)} probes: {seconds:.1f} s, load {load:.1f}")
    longest = max(probe.unseen for probe in probes)
    assert longest < HANG_SECONDS, f"health was ok for {longest:.1f} s while a newcomer hung"
    assert all(client.status() == 0 for client in [*coming, *(probe.client for probe in probes)])
