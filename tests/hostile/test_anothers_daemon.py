"""A user's own daemon, without root, and other users of the machine: what they can have it do."""

import pytest
from mpsd_client import calls

from tests.hostile.attacker import attack
from tests.hostile.frames import frames
from tests.integration.machine import Machine

pytestmark = pytest.mark.root  # to act as another user

PROCESSES = 6
# Each of these processes enlists, and stays until all have.  argv: mpsd.sock, the two messages, their number.
ENLISTS = """
import os, socket, sys, time
children = []
for _ in range(int(sys.argv[4])):
    answer, said = os.pipe()
    if not (pid := os.fork()):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(sys.argv[1])
        for message in sys.argv[2:4]:
            made.send(bytes.fromhex(message))
            told = made.recv(1 << 16)
        os.write(said, told)
        time.sleep(60)
    children.append(pid)
    print(os.read(answer, 1 << 16))
for pid in children:
    os.kill(pid, 9)
"""


def test_processes_of_another_user_get_no_domains(strangers: Machine) -> None:
    """Each got one apart from the others: a vendor daemon on the account of mpsd's user, and its private directory's name."""
    strangers.start()
    said = attack(ENLISTS, strangers.pipe / "mpsd.sock", *frames(calls.service_enlist("crowd")), PROCESSES)
    assert said.count("NOT_ALLOWED") == PROCESSES
    assert "CUDA_MPS_PIPE_DIRECTORY" not in said
