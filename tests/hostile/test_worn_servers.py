"""A user wears out the server that all users share, and stays: others get contexts elsewhere."""

import os

import pytest

from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for
from tests.integration.test_worn_servers import ENDS, MOST_FAILURES, is_ready, limited, take_space

ATTACKER, VICTIM = UIDS

pytestmark = pytest.mark.root


def test_a_user_who_stays_at_a_worn_server_keeps_no_other_from_a_context(machine: Machine) -> None:
    """Three users had to fail there in a row, and each context that the user made elsewhere began the count anew."""
    machine.start("-multiuser-server")
    stays = machine.counter(uid=ATTACKER).ready()
    spaces = []
    for each in range(ENDS):
        client = limited(machine, f"leak-{each}", ATTACKER)
        spaces.append(take_space(client))
        client.process.kill()
        client.process.wait()
    wait_for("a newcomer without a context", lambda: not is_ready(machine.counter(uid=VICTIM)))
    failures = 1
    while not is_ready(newcomer := machine.counter(uid=VICTIM)):
        failures += 1
        assert failures <= MOST_FAILURES
    newcomer.goes_on()
    stays.goes_on()
    assert machine.domain_of(newcomer) != machine.domain_of(stays)
    for space in spaces:
        os.close(space)
