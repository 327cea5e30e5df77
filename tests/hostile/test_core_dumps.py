"""The directory of core dumps, into which every user of the machine may write."""

from tests.hostile.attacker import attacking
from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.unit.faults.test_core_file import SAMPLES

# A writer of a FIFO is let go on when somebody opens it for reading.
OFFER_A_FIFO = """
import os, signal, sys, threading
os.chdir(sys.argv[1])
os.mkfifo("made")
def write():
    os.close(os.open("core.1", os.O_WRONLY))
    print("opened", flush=True)
os.rename("made", "core.1")
threading.Thread(target=write, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
signal.pause()
"""


def test_mpsd_opens_no_fifo_of_a_client(machine: Machine) -> None:
    """It only looks at what is no regular file."""
    machine.start()
    cores = machine.pipe / "cores"
    wait_for("the directory", cores.is_dir)
    with attacking(OFFER_A_FIFO, cores) as attack:
        (cores / "core.2").write_bytes(SAMPLES["misaligned-innocent"])  # newer, so looked at after the FIFO
        wait_for("mpsd to read a dump", lambda: not (cores / "core.2").exists())
        assert (cores / "core.1").is_fifo()
        attack.kill()
        assert attack.stdout is not None
        assert attack.stdout.read() == ""
