"""A client that ended before its domain got another user's server, and a fault there."""

from tests.hostile.test_held_windows import ATTACKER, OTHER
from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_faults import settled


def test_a_client_of_a_server_that_has_ended_is_not_suspected_of_a_fault_in_the_next_users(machine: Machine) -> None:
    """It had ended within six seconds before the fault, and so it was a suspect, and the culprit none alone."""
    machine.start()
    innocent = machine.counter(uid=OTHER).ready()
    domain = machine.domain_of(innocent)
    innocent.end()
    wait_for("its end", lambda: not machine.clients())
    culprit = machine.client("faulter", "trap", "--after", "0.5", uid=ATTACKER).ready()
    culprit.status()
    report = settled(machine, 1)
    assert report.domain == domain
    assert not report.suspects
    assert report.culprit is not None
    assert report.culprit.pid == culprit.pid
