"""A user's connections to the only domain of a GPU in EXCLUSIVE_PROCESS mode, while another user's server starts there."""

from tests.hostile.attacker import attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT, OTHER
from tests.integration.machine import Machine

STARTS = 3
# It connects again and again, and leaves before it is a client.
KNOCKS = (
    CONNECTS_AS_CLIENT
    + """
print("ready", flush=True)
while True:
    made = connected()
    made.settimeout(5.0)
    try:
        hear(made, 1)
    except OSError:
        pass
    made.close()
"""
)


def test_they_do_not_touch_the_server_that_another_users_client_connects_to(machine: Machine) -> None:
    """Each connection waited five seconds for the end of that server, and the client waited for the connection."""
    machine.set_compute_mode("0", "EXCLUSIVE_PROCESS")
    machine.start()
    with attacking(KNOCKS, machine.pipe / "control", uid=ATTACKER):
        for _ in range(STARTS):
            machine.counter(uid=OTHER).ready().end()
    assert not [line for line in machine.log("control.log") if "Server will not shutdown" in line]
