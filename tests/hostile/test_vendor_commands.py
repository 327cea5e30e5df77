"""The vendor's command language on a connection to `control`: a server's user may change its limits."""

import pytest
from mpsd_client import Selector, calls

from tests.hostile.attacker import SPEAKS_COMMANDS, attacking
from tests.integration.machine import UIDS, Machine

OWNER = UIDS[0]
SHARE = 8  # SMs: half of a lease of 10 % for two processes
LIFTS = (
    SPEAKS_COMMANDS
    + """
line = f"set_active_thread_percentage {sys.argv[2]} 100".encode()
until = time.monotonic() + 2
while time.monotonic() < until:
    say(COMMAND, line)
    hear(END)
    time.sleep(0.01)
for _ in range(int(sys.argv[3])):
    say(COMMAND, line)
made.close()
time.sleep(60)
"""
)


@pytest.mark.parametrize("left", [0, 64], ids=["answered", "left in the queue"])
def test_a_servers_user_does_not_lift_the_limits_of_a_lease(machine: Machine, left: int) -> None:
    """A client with a tenth of the GPU got all of it."""
    machine.start()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("job", Selector.of_uid(OWNER), sm_percent=10, processes=2, owner_uid=OWNER))
    first = machine.counter(uid=OWNER).ready()
    server = machine.server_of(first)
    first.end()
    with attacking(LIFTS, machine.pipe / "control", server, left, uid=OWNER):
        client = machine.client("quota", "--most", "64", uid=OWNER)
        assert client.status() == 0, client.events("error")
        assert client.wait("quota")["sms"] == SHARE
