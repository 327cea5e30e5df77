"""A client's file that never closes, and mpsd is to end: the thread that closes it stays, and with it mpsd's descriptors."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mpsd_client import Client, MpsdError, Selector, calls

from tests.hostile.attacker import NOBODY
from tests.hostile.silent_files import BRINGS_A_FILE, sent
from tests.integration.machine import Machine
from tests.integration.process import wait_for


def states(pid: int) -> dict[int, str]:
    """Return the states of a process's threads, of those that there still are."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has
                found[int(task.name)] = (task / "stat").read_text().rpartition(") ")[2][0]
    return found


def make_leases(mpsd: Client) -> None:
    with mpsd, suppress(MpsdError, OSError):
        while True:
            lease = mpsd.ask(calls.lease_create("one of many", Selector.of_self(), sm_percent=1))
            mpsd.ask(calls.lease_release(lease.id))


def stop_in_a_commit(pid: int, database: Path) -> None:
    """Stop mpsd while it holds SQLite's lock on the database's log."""
    written = f":{os.stat(f'{database}-shm').st_ino} 120 "  # the byte WAL_WRITE_LOCK
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_for("mpsd to stop", lambda: set(states(pid).values()) <= {"T", "D"})
        if any(written in line and f" WRITE {pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)


@pytest.mark.root
@pytest.mark.parametrize("how", ["kill -9", "kill -9 in a commit", "quit"])
def test_a_thread_that_cannot_end_keeps_no_later_mpsd_out(machine: Machine, how: str) -> None:
    """Its table of descriptors was mpsd's, with the lock: until the file server ended no mpsd could be started."""
    machine.start()
    pid = machine.daemon_pid()
    with sent(BRINGS_A_FILE, NOBODY, machine.pipe / "mpsd.sock") as said:
        assert int(said) in states(pid), said
        if how == "quit":
            assert machine.ask("quit -t 0", seconds=60).returncode == 0
        else:
            if how.endswith("commit"):  # of a user's requests
                threading.Thread(target=make_leases, args=(machine.connect(NOBODY),), daemon=True).start()
                stop_in_a_commit(pid, machine.state / "leases.db")
            os.kill(pid, signal.SIGKILL)
        wait_for("the rest of mpsd to end", lambda: set(states(pid).values()) == {"D", "Z"})
        machine.start()
        assert machine.daemon_pid() != pid
        machine.counter(uid=1000).ready()
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.lease_create("later", Selector.of_self(), sm_percent=1))
