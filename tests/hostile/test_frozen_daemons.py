"""Clients that freeze the vendor daemon which they share with other users, by words after which nothing can be repeated."""

import pytest

from tests.hostile.attacker import attacking
from tests.integration.machine import UIDS, Machine

# The daemon ignores what it does not understand, and waits for this client alone.  mpsd keeps no descriptor for a repetition.
FREEZE = """
import socket, sys, time
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.connect(sys.argv[1])
if sys.argv[2] == "a descriptor":
    with open("/dev/null") as device:
        socket.send_fds(end, [b"junk"], [device.fileno()])
for _ in range(int(sys.argv[3])):
    end.send(b"junk")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("what", ["a descriptor", "many"])
def test_a_daemon_is_freed_of_a_client_that_cannot_be_linked_again(machine: Machine, what: str) -> None:
    """It stood still for as long as the client liked: for newcomers, and for all commands about everybody's clients."""
    machine.start("-multiuser-server")
    victim = machine.counter(uid=UIDS[0]).ready()
    domain = machine.domain_of(victim)
    with attacking(FREEZE, machine.pipe / "control", what, 0 if what == "a descriptor" else 20):
        machine.wait_for_journal("relay.held")
        assert machine.domain_of(machine.counter(uid=UIDS[1]).ready()) == domain
        victim.goes_on()
