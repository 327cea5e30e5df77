"""A user's connections to the only domain of a GPU in EXCLUSIVE_PROCESS mode, while another user's server starts there."""

from tests.hostile.attacker import attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT, OTHER
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for

STARTS = 10
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
        assert any(is_untouched_start(machine) for _ in range(STARTS))
    assert not machine.journal("server.forced")


def is_untouched_start(machine: Machine) -> bool:
    """Return whether a client started, and nobody meanwhile asked its server to shut down.

    That may be asked of a server whose client has arrived and has no context yet, which no list shows: long on a busy machine.
    """
    before = refused(machine)
    client = machine.counter(uid=OTHER).ready()
    server = machine.server_of(client)
    is_untouched = refused(machine) == before
    client.end()
    wait_for("its server to be shut down", lambda: not is_running(server))
    return is_untouched


def refused(machine: Machine) -> int:
    """Return how often a server was asked to shut down that a process was connected to; it is so for a moment at an end too."""
    return sum("Server will not shutdown" in line for line in machine.log("control.log"))
