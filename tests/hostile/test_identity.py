"""The identity of a client: the process that connected, and no process that gets its connection or its pid afterwards."""

import pytest

from mpsd.domains.refuser import REFUSER_UID
from tests.hostile.attacker import NOBODY, attacking
from tests.integration.machine import Machine
from tests.integration.process import wait_for

GIVES_AWAY = """
import os, socket, sys, time
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(sys.argv[1])
print("ready", flush=True)
if not os.fork():
    made.send(b"words of another process")
    time.sleep(60)
time.sleep(60)
"""
ENDS_AT_ONCE = """
import os, signal, socket, sys, time
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSTOP)  # until mpsd is stopped
    made.connect(sys.argv[1])
    os._exit(0)
print("ready", flush=True)
sys.stdout.flush()
os.waitpid(child, os.WUNTRACED)
while True:
    try:
        open(sys.argv[2]).close()
        break
    except OSError:
        time.sleep(0.01)
os.kill(child, signal.SIGCONT)
os.waitpid(child, 0)
open(sys.argv[3], "w").close()
time.sleep(60)
"""


def held(machine: Machine, words: str) -> list[dict[str, object]]:
    return [line for line in machine.journal("relay.held") if words in str(line["why"])]


def test_nobody_speaks_on_a_connection_that_another_process_made(machine: Machine) -> None:
    """Its limits would be those of the process that connected."""
    machine.start()
    with attacking(GIVES_AWAY, machine.pipe / "control"):
        [line] = wait_for("the connection to be held", lambda: held(machine, "speaks on the connection of"))
        assert line["uid"] == NOBODY
    machine.counter().ready()


def test_a_client_with_the_uid_of_the_refusing_daemon_is_not_served(machine: Machine) -> None:
    """Root of a container without a user namespace can take it: that daemon served it, without limits, as its own user's."""
    machine.configure('[admission]\ndefault = "refuse"\nrefuse_with = "error"\n')
    machine.start()
    client = machine.counter(uid=REFUSER_UID)
    [line] = wait_for("the connection to be held", lambda: held(machine, "which would serve it") or client.events("ready"))
    assert line.get("uid") == REFUSER_UID, line


@pytest.mark.deadline(60)
def test_a_process_that_has_ended_is_not_mistaken_for_the_next_with_its_pid(machine: Machine) -> None:
    """Its connection is in the queue of a busy mpsd when it ends; its parent has the connection, too."""
    machine.start()
    go, gone = machine.place / "machine" / "go", machine.place / "machine" / "gone"
    with attacking(ENDS_AT_ONCE, machine.pipe / "control", go, gone):
        machine.signal_daemon("SIGSTOP")
        go.touch()
        wait_for("the process to connect and end", gone.exists)
        machine.signal_daemon("SIGCONT")
        [line] = wait_for("the connection to be held", lambda: held(machine, "has ended"))
        assert line["uid"] == NOBODY
    machine.counter().ready()
