"""A client's file that never closes, and mpsd is killed: its process stays, and may hold what a dead writer's work needs."""

import os
import signal
import subprocess
import sys

import pytest
from mpsd_client import calls

from mpsd.model.arena import GRANULE
from tests.hostile.silent_files import BRINGS_A_FILE, sent
from tests.hostile.test_slow_exits import states
from tests.integration.machine import FRONT_END, Machine
from tests.integration.process import wait_for

MOUNT = "mount -t fusectl none /sys/fs/fuse/connections"  # in the daemon's mount namespace alone
WITH_CONTROL_FILES = f"""#!/bin/sh
exec unshare --mount sh -c '{MOUNT} && exec {FRONT_END} "$@"' sh "$@"
"""
HAS_THE_ARENA = """
import sys, time
from mpsd_client import Client, calls
mpsd = Client(sys.argv[1])
mpsd.ask(calls.arena_open("kv", "write"))
print("ready", flush=True)
time.sleep(600)
"""
ATTACKER = 64_111
SECONDS = 30.0


@pytest.mark.root
def test_an_arena_gets_another_writer_though_the_mpsd_before_cannot_end(machine: Machine) -> None:
    """A user's silent file server kept its process, and all that was open there: until that server ended the arenas of all
    who wrote when mpsd was killed got no other writer, and services no successor."""
    if not os.access("/dev/fuse", os.R_OK):
        pytest.skip("no FUSE here")
    if (probe := subprocess.run(["unshare", "--mount", "sh", "-c", MOUNT], capture_output=True, check=False)).returncode:
        pytest.skip(f"fusectl cannot be mounted here: {probe.stderr.decode()}")
    starter = machine.place / "starter"
    starter.write_text(WITH_CONTROL_FILES)
    starter.chmod(0o755)
    assert machine.run("-d", program=starter).returncode == 0
    pid = machine.daemon_pid()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
    writer = subprocess.Popen([sys.executable, "-c", HAS_THE_ARENA, machine.pipe / "mpsd.sock"], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with sent(BRINGS_A_FILE, ATTACKER, machine.pipe / "mpsd.sock") as said:
            assert int(said) in states(pid), said
            os.kill(pid, signal.SIGKILL)
            wait_for("the rest of mpsd to end", lambda: set(states(pid).values()) == {"D", "Z"})
            assert machine.run("-d", program=starter).returncode == 0
            writer.kill()
            with machine.mpsd() as mpsd:
                mpsd.ask(calls.arena_open("kv", "write", wait_seconds=SECONDS))
            assert machine.journal("daemon.unfinished")
    finally:
        writer.kill()
        writer.communicate()
