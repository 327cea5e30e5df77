"""The directory of core dumps, into which every user of the machine may write."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.hostile.attacker import attacking
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.unit.faults.sources.test_core_dump_file import SAMPLES

# A writer of a FIFO continues when a process opens the FIFO for reading.
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
    """mpsd only inspects files that are not regular."""
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


# Another container: root without capabilities, in a separate pid namespace, not a client; it writes and ends at once.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--bounding-set=-all", "--inh-caps=-all", "cp"]


def test_a_process_that_is_no_client_accuses_none_by_the_name_of_its_file(machine: Machine, tmp_path: Path) -> None:
    machine.start()
    victim = machine.counter().ready()
    cores = machine.pipe / "cores"
    wait_for("the directory", cores.is_dir)
    guilty = tmp_path / "guilty"
    guilty.write_bytes(SAMPLES["misaligned-culprit"])
    daemon = machine.daemon_pid()
    os.kill(daemon, signal.SIGSTOP)  # as if it was busy: the writer has ended when mpsd reads the kernel's event
    try:
        subprocess.run([*CONTAINER, guilty, cores / f"core.x.{victim.pid}"], check=True, timeout=60)
    finally:
        os.kill(daemon, signal.SIGCONT)
    dumps = lambda: [each for each in machine.journal("fault.seen") if each["source"] == "core_dump"]  # noqa: E731
    (seen,) = wait_for("mpsd to read it", dumps)
    assert (seen["pid"], seen["is_proof"]) == (None, False)
    assert machine.journal("fault.opened") == machine.journal("blame.changed") == []
    victim.goes_on()


HELD_CORES = Path(__file__).with_name("held_cores.c")


@pytest.mark.parametrize("call", ["mkdir", "unlink", "rmdir"])
def test_an_mpsd_starts_serves_and_ends_while_a_user_holds_the_directorys_lock(machine: Machine, call: str) -> None:
    """It waited on its event loop at its start, and for the look at its end: until the user's file server ended."""
    library = machine.place / "held_cores.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HELD_CORES], check=True)
    machine.start(LD_PRELOAD=str(library), HELD_CALL=call)
    pid, cores = machine.daemon_pid(), machine.pipe / "cores"
    wait_for("the directory", cores.is_dir)
    if call != "mkdir":
        wait_for("its other users", lambda: (cores / "kept").is_dir() and cores.stat().st_mode & 0o7777 == 0o1733)
        (cores / "core.2").write_bytes(SAMPLES["misaligned-innocent"])
        wait_for("a look", lambda: not (cores / "core.2").exists())
        (cores / "core.1").write_bytes(SAMPLES["misaligned-innocent"])
        wait_for("a look", lambda: call != "unlink" or machine.journal("faults.no_core_dumps"), 60)
    client = machine.counter().ready()
    client.end()
    assert machine.quit() == 0
    wait_for("its end", lambda: not is_running(pid))
