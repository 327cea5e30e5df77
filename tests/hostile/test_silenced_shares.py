"""Where users share servers: one user silences domain after domain with own, stopped clients."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.hostile.attacker import NOBODY
from tests.integration.machine import UIDS, Machine
from tests.integration.process import state_of, wait_for

DOMAINS = 4  # the last one is for users who have none


@pytest.fixture
def stop() -> Iterator[Callable[[int], None]]:
    """Return a function that stops a client; all are continued in the end."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)
        wait_for("the stop of a client", lambda: state_of(pid) == "T")

    yield stop
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_user_whose_domain_another_closed_starts_clients(machine: Machine, stop: Callable[[int], None]) -> None:
    """All these domains counted as those of the users who had clients there, and no user but the attacker could do anything."""
    machine.configure(f"[domains]\nmax_domains = {DOMAINS}\n")
    machine.start("-multiuser-server")
    victim = machine.counter(uid=UIDS[0]).ready()
    for number in range(1, DOMAINS):
        own = machine.counter(uid=NOBODY).ready(60)
        if number == 1:
            assert machine.domain_of(own) == machine.domain_of(victim)
        stop(own.pid)
        machine.client("faulter", "trap", uid=NOBODY)
        wait_for("a silent domain", lambda many=number: len(machine.journal("domain.hindered")) >= many, 30)
    again = machine.counter(uid=UIDS[0]).ready(60)
    assert machine.domain_of(again) not in {each["domain"] for each in machine.journal("domain.hindered")}
    machine.counter(uid=NOBODY)
    waits = wait_for("a wait of the attacker", lambda: [e for e in machine.journal("client.waiting") if e["uid"] == NOBODY])
    assert "its user has fault domains" in waits[-1]["reason"]
