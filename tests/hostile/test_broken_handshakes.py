"""A client that has a channel to a server, and then breaks its handshake."""

import time

from tests.hostile.attacker import attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT, OTHER
from tests.hostile.test_idle_members import clients
from tests.integration.machine import Machine
from tests.integration.process import wait_for

# It has its channel.  Then it sends a text that mpsd does not pass on, and keeps both.
BREAKS = (
    CONNECTS_AS_CLIENT
    + """
made = connected()
hear(made, 1)
say(made, HELLO)
hear(made, WELCOME)
say(made, ATTACH)
[channel] = hear(made, GRANT)
made.send(b"x" * 5000)
channel = socket.socket(fileno=channel)
hear(channel, ACCEPT)
print("ready", flush=True)
time.sleep(600)
"""
)
COUNTED_SECONDS = 15.0  # a process that has only connected counts for ten


def test_it_keeps_no_server_of_another_users_domain(machine: Machine) -> None:
    """Its channel counted for ten seconds.  Then mpsd placed another user there, whose server could not start: it hung."""
    machine.start()
    with attacking(BREAKS, machine.pipe / "control", uid=ATTACKER):
        wait_for("its hold", lambda: machine.journal("relay.held"))
        time.sleep(COUNTED_SECONDS)
        other = machine.counter(uid=OTHER).ready()
        assert (clients(machine, "default"), machine.domain_of(other)) == (1, "d2")
