"""The memory of a client that ends in a contained domain, on the simulator: no other client gets it before the domain ends."""

import signal

import pytest
from mpsd_client import Selector, calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_contained import LEAVE, named, states
from tests.integration.test_leases import queue, token
from tests.integration.test_sentinels import started

pytestmark = pytest.mark.root


def lease(machine: Machine, name: str, memory_bytes: int) -> int:
    with machine.mpsd() as mpsd:
        selector = Selector.of_token(token(name))
        return mpsd.ask(calls.lease_create(name, selector, sm_percent=10.0, memory_bytes={"0": memory_bytes})).id


def counter(machine: Machine, name: str) -> Client:
    return machine.counter(MPSD_LEASE=token(name))


def ended_beside(machine: Machine) -> Client:
    """End a client with a quarter of the GPU's memory in a contained domain; return another client there.

    The rest of the memory is reserved.  A client that ends before the sentinel has its descriptors leaves co-runners that hang.
    """
    started(machine, LEAVE)
    with machine.mpsd() as mpsd:
        total = mpsd.ask(calls.device_list()).items[0].total_bytes
    lease(machine, "sleeper", 1 << 30)
    lease(machine, "failing", total // 4)
    lease(machine, "reserved", total - total // 4 - (1 << 30))
    sleeper = counter(machine, "sleeper").ready()
    failing = machine.client("faulter", "misaligned", "--after", "0.3", "--linger", "60", MPSD_LEASE=token("failing")).ready()
    found = named(machine)  # proven only once the sentinel has its descriptors
    assert found.culprit
    assert (found.culprit.pid, found.confidence) == (failing.pid, "proven")
    failing.end(signal.SIGKILL)
    wait_for("mpsd to notice its end", lambda: clients(machine)["failing"] == 0)
    return sleeper


def clients(machine: Machine) -> dict[str, int]:
    with machine.mpsd() as mpsd:
        return {each.name: each.clients for each in mpsd.pages(calls.lease_list())}


def waits(machine: Machine, client: Client) -> None:
    def why() -> list[str]:
        return [each.reason for each in queue(machine) if each.pid == client.pid and "1 of its 1 processes" in each.reason]  # type: ignore[attr-defined]

    wait_for("it to wait for its lease", why)
    assert client.is_silent()


def test_the_next_client_of_its_lease_waits_for_the_end_of_the_domain(machine: Machine) -> None:
    """The lease was free at once: with a client that sleeps in each contained domain, a user held the lease many times."""
    sleeper = ended_beside(machine)
    second = counter(machine, "failing")
    waits(machine, second)
    counter(machine, "reserved").ready()
    assert second.is_silent()
    sleeper.end(signal.SIGKILL)
    second.ready()
    assert states(machine)["default"] != "contained"


def test_it_starts_at_once_where_memory_is_not_reserved(machine: Machine) -> None:
    sleeper = ended_beside(machine)
    with machine.mpsd() as mpsd:
        [reserved] = [each.id for each in mpsd.pages(calls.lease_list()) if each.name == "reserved"]
        mpsd.ask(calls.lease_release(reserved))
    counter(machine, "failing").ready()
    assert states(machine)["default"] == "contained"
    sleeper.goes_on()


def test_the_next_mpsd_counts_it_too(machine: Machine) -> None:
    sleeper = ended_beside(machine)
    machine.kill_daemon()
    machine.start()
    assert states(machine)["default"] == "contained"
    second = counter(machine, "failing")
    waits(machine, second)
    sleeper.goes_on()
    sleeper.end(signal.SIGKILL)
    second.ready()


def test_it_is_free_where_the_domain_ended_while_no_mpsd_ran(machine: Machine) -> None:
    sleeper = ended_beside(machine)
    machine.kill_daemon()
    sleeper.end(signal.SIGKILL)
    machine.start()
    counter(machine, "failing").ready()


@pytest.mark.slow
def test_it_is_free_after_an_end_without_an_exception(machine: Machine) -> None:
    started(machine, LEAVE)
    lease(machine, "a", 1 << 30)
    counter(machine, "a").ready().end(signal.SIGKILL)
    machine.kill_daemon()
    machine.start()
    counter(machine, "a").ready()


@pytest.mark.slow
def test_a_client_that_was_killed_has_its_place_until_mpsd_has_released_it(machine: Machine) -> None:
    """mpsd keeps its GPU context for its co-runners.  The next client got the same memory at once, and so did each after it."""
    machine.start()
    with machine.mpsd() as mpsd:
        total = mpsd.ask(calls.device_list()).items[0].total_bytes
    lease(machine, "killed", total // 2)
    lease(machine, "reserved", total - total // 2)
    machine.counter().ready()
    killed = counter(machine, "killed").ready()
    killed.end(signal.SIGKILL)
    counter(machine, "killed").ready()
    assert [each["pid"] for each in machine.journal("uvm.released")] == [killed.pid]
