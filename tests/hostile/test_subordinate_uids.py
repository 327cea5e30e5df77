"""One user with a range of /etc/subuid: many uids, and the share of one."""

import subprocess
from pathlib import Path

import pytest
from mpsd_client import Disconnected, Refused, Selector, calls

from tests.hostile.attacker import attacking
from tests.integration.machine import FRONT_END, Machine
from tests.integration.process import wait_for

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
def granted(machine: Machine, request: pytest.FixtureRequest) -> Machine:
    """An mpsd that reads a file in which a user, or root as for containers of LXC, has 65,536 uids; with few places."""
    if not Path("/etc/subuid").exists():
        pytest.skip("no /etc/subuid on this machine")
    file = machine.place / "subuid"
    owner = getattr(request, "param", "eve")
    file.write_text(f"{owner}:{FIRST}:65536\n")
    machine.configure(
        "[relay]\nmax_connections = 64\n[api]\nmax_connections = 128\nmax_per_user = 16\n"
        "[domains]\nspares = 0\nmax_domains = 4\n"
        "[admission]\nmax_leases = 64\nuser_leases = 16\n[vault]\nmax_arenas = 64\nuser_arenas = 16\n"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", GRANTED, str(file), str(FRONT_END), "-d"], env=machine.variables, cwd="/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return machine


@pytest.mark.parametrize("granted", ["eve", "root"], indirect=True)
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


def test_many_uids_of_one_user_leave_leases_and_arenas_for_others(granted: Machine) -> None:
    """A lease and an arena for each uid: 64 took all, of root too."""
    for uid in range(FIRST, FIRST + 16):
        with granted.mpsd(uid) as mpsd:
            mpsd.ask(calls.lease_create("mine", Selector.of_uid(uid), memory_bytes={"0": 1 << 20}))
            mpsd.ask(calls.arena_create(f"mine-{uid}", "0", 2 << 20))
    with granted.mpsd(FIRST + 16) as mpsd:
        with pytest.raises(Refused, match="quota of user 100000, leases: 1 asked, 16 of 16 taken"):
            mpsd.ask(calls.lease_create("mine", Selector.of_uid(FIRST + 16), memory_bytes={"0": 1 << 20}))
        with pytest.raises(Refused, match="user 100000 has 16 arenas"):
            mpsd.ask(calls.arena_create("one-more", "0", 2 << 20))
    with granted.mpsd(INNOCENT) as mpsd:
        mpsd.ask(calls.lease_create("other", Selector.of_uid(INNOCENT), memory_bytes={"0": 1 << 20}))
        mpsd.ask(calls.arena_create("other", "0", 2 << 20))


def test_many_uids_of_one_user_leave_domains_for_others(granted: Machine) -> None:
    """Each uid has a separate server: four took all domains."""
    for uid in range(FIRST, FIRST + 3):
        granted.counter(uid=uid).ready(10.0)
    granted.counter(uid=FIRST + 3)
    wait_for("the fourth to wait", lambda: any("kept for" in line["reason"] for line in granted.journal("client.waiting")))
    granted.counter(uid=INNOCENT).ready(20.0)
