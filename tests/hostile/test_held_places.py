"""Connections that one user's clients keep open: they leave places for the clients of others."""

from tests.hostile.attacker import attacking
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

PLACES, PROCESSES = 64, 20
TAKEN = 44  # by one user: 40 of the 56 for everybody, and more than half of the eight kept for clients with a domain
KEEPS = """
import os, socket, sys, time
for _ in range(int(sys.argv[2])):
    if os.fork():
        continue
    kept = []
    for _ in range(4):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        kept[-1].connect(sys.argv[1])
        if not os.fork():  # mpsd holds a connection on which another process speaks
            kept[-1].send(b"words of another process")
            os._exit(0)
        os.wait()
        time.sleep(0.5)
    time.sleep(120)
print("ready", flush=True)
time.sleep(120)
"""


def test_a_user_whose_clients_keep_connections_leaves_places_for_others(machine: Machine) -> None:
    """Each process with a domain could keep four, without regard to its user's share: no client of others was accepted."""
    machine.configure(f"[relay]\nmax_connections = {PLACES}\n")
    machine.start()
    with attacking(KEEPS, machine.pipe / "control", PROCESSES):
        wait_for("most places to be taken", lambda: len(machine.journal("relay.held")) >= TAKEN, 60)
        for _ in range(3):
            machine.counter(uid=UIDS[0]).ready(30)
