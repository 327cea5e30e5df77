"""A user who speaks without a pause on connections to a server that several users share."""

from mpsd_client import Selector, calls

from tests.hostile.attacker import CONNECTS, GREETS, SPEAKS_COMMANDS, attacking
from tests.integration.machine import UIDS, Machine

ATTACKER, OTHER = UIDS
WITHOUT_A_PAUSE = """
while True:
    say(COMMAND, b"get_server_list")
    hear(END)
"""
SPEAKS = SPEAKS_COMMANDS + WITHOUT_A_PAUSE
SPEAKS_ON_MANY = (
    CONNECTS
    + """
import threading
for made in [connected() for _ in range(int(sys.argv[2]))]:
    threading.Thread(target=exec, args=(sys.argv[3], {"made": made})).start()
"""
)
CONNECTIONS = 60
WINDOWS = 15  # of the attacker: about one for each connection of the client, and those that pass while it makes none


def start_with_leases(machine: Machine) -> None:
    machine.start("-multiuser-server")
    with machine.mpsd() as mpsd:
        for uid in (ATTACKER, OTHER):
            mpsd.ask(calls.lease_create(f"job-{uid}", Selector.of_uid(uid), sm_percent=10, processes=2, owner_uid=uid))


def test_who_speaks_without_a_pause_keeps_no_window(machine: Machine) -> None:
    """Another user's client with limits waited for as long as the first one spoke."""
    start_with_leases(machine)
    with attacking(SPEAKS, machine.pipe / "control", uid=ATTACKER):
        machine.counter(uid=OTHER).ready()


def test_who_speaks_on_many_connections_keeps_others_waiting_for_one_window(machine: Machine) -> None:
    """Each connection had a window before the other user's client: 47 s for sixty of them."""
    start_with_leases(machine)
    with attacking(SPEAKS_ON_MANY, machine.pipe / "control", CONNECTIONS, GREETS + WITHOUT_A_PAUSE, uid=ATTACKER):
        machine.counter(uid=OTHER).ready()
        assert len(machine.journal("relay.detached")) <= WINDOWS
