"""A user who ends the sentinel's client of a spare domain, which is in a server of that user until another one comes."""

from tests.hostile.attacker import attacking
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

REQUIRED = '[sentinel]\nself_test = false\nmode = "required"\nstart_seconds = 2.0\n'
# Kills the stopped clients of all sentinels in its user's servers, also while they start.
KILLS = """
import os, signal
print("ready", flush=True)
while True:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as name:
                if name.read() == "mpsd-sentinel\\n":
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
"""


def test_who_ends_a_spares_sentinel_keeps_no_other_user_out(machine: Machine) -> None:
    """Another user's client that was placed there waited 30 s, and with some connections of the first user for ever."""
    machine.configure(REQUIRED)
    machine.start()
    machine.counter(uid=UIDS[0]).ready()
    spares = lambda event: [each for each in machine.journal(event) if each["domain"] != "default"]  # noqa: E731
    wait_for("the spare's sentinel", lambda: spares("sentinel.ready"))
    with attacking(KILLS, uid=UIDS[0]):
        wait_for("one that was ended while it started", lambda: spares("sentinel.not_ready"), 60.0)
        machine.counter(uid=UIDS[1]).ready(15.0)
