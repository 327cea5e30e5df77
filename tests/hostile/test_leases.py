"""Leases that a user asks for about other users' processes."""

import pytest
from mpsd_client import Refused, Selector, calls

from tests.hostile.attacker import NOBODY
from tests.integration.machine import UIDS, Machine


def test_a_lease_for_another_users_pid_is_refused(machine: Machine) -> None:
    """Of what use it would have been: none, but it took its share of the GPU.  The user's own and an operator's are made."""
    machine.start()
    theirs, own = machine.counter(uid=UIDS[0]).ready(), machine.counter(uid=NOBODY).ready()
    with machine.mpsd(uid=NOBODY) as mpsd:
        with pytest.raises(Refused, match="another user's, or outside"):
            mpsd.ask(calls.lease_create("theirs", Selector.of_pid(theirs.pid), sm_percent=10))
        lease = mpsd.ask(calls.lease_create("own", Selector.of_pid(own.pid), sm_percent=10))
        assert lease.selector.value == str(own.pid)
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("theirs", Selector.of_pid(theirs.pid), sm_percent=10))
