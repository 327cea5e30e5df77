"""Processes with 65,536 groups: the kernel takes 8 to 20 ms for the status of each, and mpsd reads it before each signal."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpsd_client import calls

from mpsd.host.processes import children
from tests.hostile.attacker import NOBODY, PYTHON
from tests.integration.machine import Machine
from tests.integration.process import wait_for

CLIENTS = 100
MOST_BLOCKS = 2  # there were 15
# Root of a container can do this, and so can a user with subordinate gids.
CROWD = """
import os, signal, socket, sys
uid, door, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups(range(100000, 165536))
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
for _ in range(count):
    if not os.fork():
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(door)
        signal.pause()
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def crowd(machine: Machine) -> Iterator[int]:
    """Yield the pid of the parent of clients that send nothing."""
    command = [PYTHON, "-I", "-S", "-c", CROWD, str(NOBODY), str(machine.pipe / "control"), str(CLIENTS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def test_no_number_of_groups_lets_the_end_of_clients_block_mpsd(machine: Machine, cgroup: Path) -> None:
    machine.start()
    with crowd(machine) as parent, machine.mpsd() as mpsd:
        for pid in children(parent):
            (cgroup / "cgroup.procs").write_text(str(pid))
        wait_for("the clients to come", lambda: len(list(mpsd.pages(calls.client_list()))) >= CLIENTS, 60)
        before = len(machine.journal("loop.blocked"))
        with machine.mpsd(NOBODY) as own:
            done = own.ask(calls.client_stop(cgroup=f"/{cgroup.name}"))
    assert done.count == CLIENTS
    machine.wait_for_journal("client.stop")
    blocks = machine.journal("loop.blocked")[before:]
    assert sum(1 + entry["more_before"] for entry in blocks) <= MOST_BLOCKS, blocks
