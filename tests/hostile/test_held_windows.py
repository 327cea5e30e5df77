"""A user who speaks without a pause on a connection of a server that several users share."""

from mpsd_client import Selector, calls

from tests.hostile.attacker import SPEAKS_COMMANDS, attacking
from tests.integration.machine import UIDS, Machine

ATTACKER, OTHER = UIDS
SPEAKS = (
    SPEAKS_COMMANDS
    + """
while True:
    say(COMMAND, b"get_server_list")
    hear(END)
"""
)


def test_who_speaks_without_a_pause_keeps_no_window(machine: Machine) -> None:
    """Another user's client with limits waited for as long as the first one spoke."""
    machine.start("-multiuser-server")
    with machine.mpsd() as mpsd:
        for uid in (ATTACKER, OTHER):
            mpsd.ask(calls.lease_create(f"job-{uid}", Selector.of_uid(uid), sm_percent=10, processes=2, owner_uid=uid))
    with attacking(SPEAKS, machine.pipe / "control", uid=ATTACKER):
        machine.counter(uid=OTHER).ready()
