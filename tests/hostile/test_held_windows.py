"""A user who speaks without a pause on a connection of a server that several users share."""

from mpsd_client import Selector, calls

from tests.hostile.attacker import attacking
from tests.integration.machine import UIDS, Machine

ATTACKER, OTHER = UIDS
SPEAKS = """
import socket, struct, sys
HEAD = struct.Struct("<IIiiiiII")
GREETING, UI, UI_READY, COMMAND, END = 1, 10, 11, 12, 14
def say(kind, text=b""):
    made.send(HEAD.pack(0x4C4B0001, kind, 0, 0, 0, 0, len(text), 0) + text)
def hear(last):
    while HEAD.unpack_from(made.recv(1 << 17))[1] != last:
        pass
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(sys.argv[1])
hear(GREETING)
say(UI)
hear(UI_READY)
print("ready", flush=True)
while True:
    say(COMMAND, b"get_server_list")
    hear(END)
"""


def test_who_speaks_without_a_pause_keeps_no_window(machine: Machine) -> None:
    """Another user's client with limits waited for as long as the first one spoke."""
    machine.start("-multiuser-server")
    with machine.mpsd() as mpsd:
        for uid in (ATTACKER, OTHER):
            mpsd.ask(calls.lease_create(f"job-{uid}", Selector.of_uid(uid), sm_percent=10, processes=2, owner_uid=uid))
    with attacking(SPEAKS, machine.pipe / "control", uid=ATTACKER):
        machine.counter(uid=OTHER).ready()
