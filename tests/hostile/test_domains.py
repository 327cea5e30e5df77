"""One user who wants every fault domain."""

from mpsd_client import Selector, calls

from tests.hostile.attacker import NOBODY
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

MOST = 4
KEPT = "kept for users who have none"


def test_one_user_does_not_take_all_domains(machine: Machine) -> None:
    """Leases with domains of their own are anybody's to make, and each takes one for as long as its process likes."""
    machine.configure(f"[domains]\nspares = 0\nmax_domains = {MOST}\n")
    machine.start()
    with machine.mpsd(uid=NOBODY) as mpsd:
        for number in range(MOST):
            selector = Selector.of_token(f"token-of-nobody-{number}")
            mpsd.ask(calls.lease_create(f"own{number}", selector, sm_percent=5, domain="own"))
    for number in range(MOST - 1):
        machine.counter(uid=NOBODY, MPSD_LEASE=f"token-of-nobody-{number}").ready()
    machine.counter(uid=NOBODY, MPSD_LEASE=f"token-of-nobody-{MOST - 1}")
    wait_for("the greedy one to wait", lambda: any(KEPT in line["reason"] for line in machine.journal("client.waiting")))
    machine.counter(uid=UIDS[0]).ready(30)
