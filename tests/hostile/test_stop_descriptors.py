"""A user who asks for the end of the same processes many times at once, with a long grace."""

from pathlib import Path

from mpsd_client import calls

from tests.hostile.attacker import attacking
from tests.hostile.frames import frames
from tests.hostile.test_few_descriptors import start
from tests.integration.machine import Machine

CLIENTS, STOPS = 40, 40
# Clients that live on after SIGTERM, in a cgroup, and connections that each ask for the end of all of them.
ASKS = """
import os, signal, socket, sys, time
control, asked, name, hello, stop = sys.argv[1:6]
print("ready", flush=True)
while name not in open("/proc/self/cgroup").read():
    time.sleep(0.1)
def connected(path):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(path)
    return made
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(int(sys.argv[6])):
    if os.fork() == 0:
        end = connected(control)
        time.sleep(2)
        end.close()
        while True:
            signal.pause()
time.sleep(4)
crowd = [connected(asked) for _ in range(int(sys.argv[7]))]
for each in crowd:
    each.send(bytes.fromhex(hello))
    each.recv(65536)
    each.send(bytes.fromhex(stop))
    time.sleep(0.05)
print("asked", flush=True)
time.sleep(600)
"""


def test_a_user_who_stops_own_clients_often_takes_no_descriptors_from_others(machine: Machine, cgroup: Path) -> None:
    """Each stop held a descriptor of each process for an hour: mpsd served no newcomer and answered no operator."""
    assert start(machine, 1024).returncode == 0
    hello, stop = frames(calls.client_stop(cgroup=f"/{cgroup.name}", grace_seconds=3600))
    words = machine.pipe / "control", machine.pipe / "mpsd.sock", cgroup.name, hello, stop, CLIENTS, STOPS
    with attacking(ASKS, *words) as attacker:
        (cgroup / "cgroup.procs").write_text(str(attacker.pid))
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "asked\n"
        with machine.mpsd() as mpsd:
            assert len(mpsd.ask(calls.client_list()).items) == CLIENTS
        machine.client("hold", uid=1000).ready()
