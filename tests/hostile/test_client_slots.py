"""One user whose processes are admitted and then stay idle: a client keeps its slot until it ends."""

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.hostile.attacker import attacking
from tests.integration.machine import Machine
from tests.integration.process import wait_for

INNOCENT = 1000
SLOTS = 64
FILL_SECONDS = 60.0
# Processes, of which each connects and hangs up until mpsd has had time to admit it, and lives on.  Not all at once: the
# relay's connections are divided too.
LIVE = """
import ctypes, os, signal, socket, sys, time
path, count = sys.argv[1], int(sys.argv[2])
parent = os.getpid()
for number in range(count):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(number % 4)
        for _ in range(3):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(path)
                time.sleep(1)
            except OSError:
                pass
            sock.close()
            time.sleep(3)
        signal.pause()
print("ready", flush=True)
time.sleep(600)
"""


def has_no_slot(mpsd: Mpsd) -> bool:
    return any(waiting.reason.startswith("clients: ") for waiting in mpsd.ask(calls.queue_list()).items)


def test_processes_of_one_user_that_stay_leave_slots_for_others(machine: Machine) -> None:
    """They held all; every other user's clients waited for ever, and root's."""
    machine.configure(f"[relay]\nmax_connections = {SLOTS}\n")
    machine.start()
    with attacking(LIVE, machine.pipe / "control", SLOTS + 16), machine.mpsd() as mpsd:
        wait_for("one that finds no slot", lambda: has_no_slot(mpsd), FILL_SECONDS)
        machine.counter(uid=INNOCENT).ready(20.0)
        machine.counter().ready(20.0)
