"""Databases that another program holds, or that were damaged."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from mpsd_client import Refused, Selector, calls

from tests.integration.machine import Machine
from tests.integration.process import wait_for

SECONDS = 4.0  # 5 to 20 before


@contextmanager
def locked(machine: Machine, name: str) -> Iterator[None]:
    """As an operator's sqlite3 in the middle of a transaction."""
    with closing(sqlite3.connect(machine.state / name, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def test_a_lock_on_the_leases_is_told_at_once_and_stops_nobody(machine: Machine) -> None:
    machine.start()
    with locked(machine, "leases.db"), machine.mpsd() as mpsd:
        begun = time.monotonic()
        with pytest.raises(Refused, match="database is locked"):
            mpsd.ask(calls.lease_create("job", Selector.of_uid(0), sm_percent=10))
        machine.counter().ready(SECONDS)
        assert time.monotonic() - begun < SECONDS
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("job", Selector.of_uid(0), sm_percent=10))


def test_a_lock_on_the_domains_stops_nobody_and_what_was_not_written_is_written_later(machine: Machine) -> None:
    machine.start()
    with locked(machine, "mpsd.db"):
        client = machine.counter(uid=1000).ready(SECONDS)
        other = machine.counter(uid=1001).ready(SECONDS)
        with machine.mpsd() as mpsd:
            wait_for("the problem", lambda: [p for p in mpsd.ask(calls.health()).problems if "database is locked" in p])
    machine.counter(uid=1000).ready()
    with machine.mpsd() as mpsd:
        wait_for("health", lambda: not [p for p in mpsd.ask(calls.health()).problems if "locked" in p])
    machine.kill_daemon()
    machine.start()
    assert {machine.domain_of(client), machine.domain_of(other)} == {"default", "d2"}


def test_domains_that_the_database_does_not_have_are_found_and_end_with_their_clients(machine: Machine) -> None:
    """Four vendor daemons were left behind, and clients of the first domain were killed."""
    machine.start()
    clients = [machine.counter(uid=uid).ready() for uid in (1000, 1001)]
    wait_for("two domains", lambda: {machine.domain_of(client) for client in clients} == {"default", "d2"})
    machine.kill_daemon()
    for path in machine.state.glob("mpsd.db-*"):
        path.unlink()
    (machine.state / "mpsd.db").write_bytes(b"")
    machine.start()
    assert {"default", "d2"} <= {event["domain"] for event in machine.journal("domain.forgotten")}
    for client in clients:
        client.goes_on()
    machine.counter(uid=1000).ready()
    assert machine.quit() == 0
    assert not machine.processes("nvidia-cuda-mps-control")
    assert not machine.processes("nvidia-cuda-mps-server")


def test_health_names_a_client_that_waits_where_a_further_user_would_not(machine: Machine) -> None:
    """It answered "ok": the last domain is kept for users without any, and this user's takes no new clients."""
    machine.configure("[domains]\nmax_domains = 4\n")
    machine.start()
    clients = [machine.counter(uid=uid).ready() for uid in (1000, 1001, 1002)]
    wait_for("three domains", lambda: len({machine.domain_of(client) for client in clients}) == len(clients))
    machine.kill_daemon()
    for path in machine.state.glob("mpsd.db-*"):
        path.unlink()
    (machine.state / "mpsd.db").write_bytes(b"")
    machine.start()
    newcomer = machine.counter(uid=1000)
    with machine.mpsd() as mpsd:
        [problem] = wait_for(
            "the problem", lambda: [p for p in mpsd.ask(calls.health()).problems if "wait for a fault domain" in p], 20.0
        )
        assert "kept for users without any" in problem
        assert newcomer.is_silent()
        for client in clients:
            client.end()
        newcomer.ready(20.0)
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems)
