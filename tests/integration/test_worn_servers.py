"""A vendor server from which no client gets a context any more: mpsd does not cause it, notices it, and replaces it."""

import ctypes
import os

import pytest
from mpsd_client import Selector, calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
ILLEGAL_STATE = 401
PIDFD_GETFD = 438  # on every architecture
MOST_FAILURES = 10  # three in a row, without those where a busy mpsd looked too late to know
ENDS = 4  # of clients with a share of their own, in each of which the simulator's server loses one: no context afterwards


def limited(machine: Machine, name: str, uid: int | None = None) -> Client:
    """Start a client under a lease of 15 %."""
    token = f"{name}-{'t' * 32}"
    with machine.mpsd(uid) as mpsd:
        mpsd.ask(calls.lease_create(name, Selector.of_token(token), sm_percent=15))
    return machine.counter(uid, MPSD_LEASE=token).ready()


def take_space(client: Client) -> int:
    """Duplicate the descriptor of its VA space, and none of its other descriptors."""
    folder = f"/proc/{client.pid}/fd"
    [number] = [each for each in os.listdir(folder) if os.readlink(f"{folder}/{each}").endswith(f"/{client.pid}.space")]
    pidfd = os.pidfd_open(client.pid)
    try:
        duplicate = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, int(number), 0)
        assert duplicate >= 0, os.strerror(ctypes.get_errno())
        return int(duplicate)
    finally:
        os.close(pidfd)


def test_clients_with_shares_come_and_go_and_newcomers_are_well(machine: Machine) -> None:
    """What mpsd holds of a client that ends must not outlive the driver's objects of that client (decision 027)."""
    machine.start()
    for each in range(ENDS + 1):
        client = limited(machine, f"round-{each}")
        client.process.terminate()
        client.process.wait()
    machine.counter().ready()
    assert not machine.journal("domain.worn")


def test_a_domain_whose_newcomers_get_no_context_is_replaced(machine: Machine) -> None:
    machine.start()
    spaces = []
    for each in range(ENDS):
        client = limited(machine, f"leak-{each}")
        spaces.append(take_space(client))
        client.process.kill()
        client.process.wait()
    wait_for("a newcomer without a context", lambda: not is_ready(machine.counter()))  # mpsd holds the last one's a moment
    for space in spaces:
        os.close(space)
    failures = 1
    while (newcomer := machine.counter()) and not is_ready(newcomer):
        failures += 1
        assert failures <= MOST_FAILURES
    newcomer.goes_on()
    assert machine.journal("domain.worn")


def is_ready(newcomer: Client) -> bool:
    """Whether it gets a context; else it has ended for want of one."""
    wait_for("its context, or an error", lambda: newcomer.events("ready") or newcomer.events("error"))
    assert newcomer.events("ready") or newcomer.error() == ILLEGAL_STATE
    return bool(newcomer.events("ready"))
