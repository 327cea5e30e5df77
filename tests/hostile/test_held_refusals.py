"""Clients that keep the daemon that refuses them: those of other users get their error all the same."""

import pytest

from tests.hostile.attacker import CONNECTS, SPEAKS_COMMANDS, attacking
from tests.hostile.test_held_windows import WITHOUT_A_PAUSE
from tests.integration.machine import UIDS, Machine

ATTACKER, OTHER = UIDS
MPS_CONNECTION_FAILED = 805
CONNECTIONS = 100
ERROR_SECONDS = 20.0
IS_SILENT = (
    CONNECTS
    + """
import time
kept = [connected() for _ in range(int(sys.argv[2]))]
for made in kept:
    made.recv(1 << 17, socket.MSG_PEEK)
    print("ready", flush=True)
time.sleep(600)
"""
)


@pytest.mark.parametrize(
    "attack",
    [IS_SILENT, SPEAKS_COMMANDS + WITHOUT_A_PAUSE],
    ids=["a hundred are silent", "one speaks without a pause"],
)
def test_refused_clients_do_not_keep_others_from_their_error(machine: Machine, attack: str) -> None:
    """One daemon refuses all clients, and waited for each silent one in turn."""
    machine.configure('[admission]\ndefault = "refuse"\nrefuse_with = "error"\n')
    machine.start()
    with attacking(attack, machine.pipe / "control", CONNECTIONS, uid=ATTACKER):
        assert machine.counter(uid=OTHER).error(ERROR_SECONDS) == MPS_CONNECTION_FAILED
