"""A client with a channel to a server, and without a context, that leaves its domain, or ends while a child has the channel."""

import signal
import subprocess
import time
from contextlib import ExitStack

import pytest
from mpsd_client import Selector, calls

from tests.hostile.attacker import attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT, OTHER
from tests.hostile.test_kernel_log import DRIVERS, write
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

# It has a channel, and connects again at SIGUSR1.
COMES_BACK = (
    CONNECTS_AS_CLIENT
    + """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
channel = attached(0, lambda: None)
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
made = connected()
hear(made, 1)
made.close()
print("back", flush=True)
time.sleep(600)
"""
)
# It connects again at SIGUSR1, before it ends the handshake in which it got its channel.
COMES_BACK_EARLY = (
    CONNECTS_AS_CLIENT
    + """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def leave():
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    made = connected()
    hear(made, 1)
    made.close()
channel = attached(0, leave)
print("back", flush=True)
time.sleep(600)
"""
)
# It ends, and a child keeps its channel.
LEAVES_A_CHILD = (
    CONNECTS_AS_CLIENT
    + """
if os.fork():
    os.wait()
    print("ready", flush=True)
    time.sleep(600)
channel = attached(0, lambda: None)
if not os.fork():
    time.sleep(600)
os._exit(0)
"""
)
COUNTED_SECONDS = 15.0  # a process that has only connected counts for ten


WAYS = {
    "from an earlier connection": (COMES_BACK, False),
    "from one still open": (COMES_BACK_EARLY, False),
    "from before a restart of mpsd": (COMES_BACK, True),
    "from one that was open before a restart": (COMES_BACK_EARLY, True),
}


def come_back(machine: Machine, left: subprocess.Popen[str]) -> None:
    write(machine.place / "machine/kmsg", DRIVERS, 31, left.pid)
    wait_for("the Xid", lambda: machine.journal("fault.xid"))
    left.send_signal(signal.SIGUSR1)
    assert left.stdout is not None
    assert left.stdout.readline() == "back\n"


@pytest.mark.deadline(120)
def test_another_user_gets_no_domain_whose_server_still_has_the_channel(programs: None) -> None:
    """Its fault past MPS had the domain suspected for two seconds, in which it left.  Then mpsd placed another user
    there, and that user's server could not start.

    Each way has a separate machine: all wait at the same time.
    """
    with ExitStack() as stack:
        machines = {way: stack.enter_context(open_machine()) for way in WAYS}
        for way, (program, is_restarted) in WAYS.items():
            machine = machines[way]
            machine.start()
            come_back(machine, stack.enter_context(attacking(program, machine.pipe / "control", uid=ATTACKER)))
            if is_restarted:
                machine.kill_daemon()
                machine.start()
        time.sleep(COUNTED_SECONDS)
        domains = {way: machine.domain_of(machine.counter(uid=OTHER).ready()) for way, machine in machines.items()}
    assert "default" not in domains.values(), domains


@pytest.mark.parametrize("has_lease", [False, True], ids=["without limits", "with limits"])
def test_another_user_gets_the_domain_although_a_child_has_an_ended_clients_channel(machine: Machine, has_lease: bool) -> None:
    """No list showed the channel, so the domain was empty.  Its server stays for a connection: the next user there hung."""
    machine.start()
    if has_lease:
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.lease_create("job", Selector.of_uid(OTHER), sm_percent=10, owner_uid=OTHER))
    with attacking(LEAVES_A_CHILD, machine.pipe / "control", uid=ATTACKER):
        wait_for("its end", lambda: [each for each in machine.journal("fault.seen") if each["source"] == "process"])
        machine.counter(uid=OTHER).ready()
