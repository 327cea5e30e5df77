"""One user with a range of /etc/subuid: many uids, and the share of one."""

import subprocess
from pathlib import Path

import pytest
from mpsd_client import Disconnected, calls

from tests.hostile.attacker import attacking
from tests.integration.machine import FRONT_END, Machine

FIRST, INNOCENT = 100_000, 1000
# Of mpsd's mount namespace alone.
GRANTED = 'mount --bind "$0" /etc/subuid && exec "$@"'
# A connection for each uid, that stays.
STAY = """
import os, socket, sys, time
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = []
for uid in range(first, first + count):
    os.seteuid(uid)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    held.append(sock)
    os.seteuid(0)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def granted(machine: Machine) -> Machine:
    """An mpsd that reads a file in which a user has 65,536 uids; with few places."""
    if not Path("/etc/subuid").exists():
        pytest.skip("no /etc/subuid on this machine")
    file = machine.place / "subuid"
    file.write_text(f"eve:{FIRST}:65536\n")
    machine.configure("[relay]\nmax_connections = 64\n[api]\nmax_connections = 128\nmax_per_user = 16\n")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", GRANTED, str(file), str(FRONT_END), "-d"], env=machine.variables, cwd="/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return machine


def test_many_uids_of_one_user_leave_connections_for_others(granted: Machine) -> None:
    """112 took all that are not kept for operators."""
    with attacking(STAY, granted.pipe / "mpsd.sock", FIRST, 120, uid=0):
        with granted.mpsd(INNOCENT) as mpsd:
            mpsd.ask(calls.health())
        with pytest.raises(Disconnected, match="has 16 connections"), granted.mpsd(FIRST + 500):
            pass


def test_many_uids_of_one_user_keep_no_client_out(granted: Machine) -> None:
    """Each has one silent connection at the relay."""
    with attacking(STAY, granted.pipe / "control", FIRST, 80, uid=0):
        granted.counter(uid=INNOCENT).ready(8.0)
