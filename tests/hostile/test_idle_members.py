"""A process that has once connected to mpsd, in the domain that others have since."""

import signal

from mpsd_client import calls

from tests.hostile.attacker import CONNECTS, GREETS, SPEAKS_COMMANDS, attacking
from tests.hostile.test_kernel_log import DRIVERS, write
from tests.integration.failovers import Troupe
from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_leases import lease, token

IDLE = (
    SPEAKS_COMMANDS
    + """
import time
made.close()
print("ready", flush=True)
time.sleep(600)
"""
)


def clients(machine: Machine, domain: str) -> int:
    with machine.mpsd() as mpsd:
        return next(each.clients for each in mpsd.ask(calls.domain_list()).items if each.name == domain)


def test_its_fault_past_mps_ends_no_active_of_another_user(machine: Machine) -> None:
    """It stays a member.  The Xid of a memory fault that names it counted for the domain: mpsd took the clients there for lost,
    and killed the active of a service in the middle of its work, which ends all others there.
    """
    machine.start()
    with attacking(IDLE, machine.pipe / "control", uid=UIDS[1]) as idle:
        wait_for("it to count no more", lambda: not clients(machine, "default"), seconds=60)
        troupe = Troupe(machine, 2, 5.0)
        view = troupe.wait_for("a service with a standby", lambda: troupe.serving(0))
        write(machine.place / "machine/kmsg", DRIVERS, 31, idle.pid)
        [seen] = wait_for("the Xid", lambda: machine.journal("fault.xid"))
        assert (seen["pid"], seen["domain"]) == (idle.pid, None)
        assert is_running(view.writer_pid)
        troupe.end()


def test_nor_does_it_after_a_restart_of_mpsd(machine: Machine) -> None:
    """The next mpsd took it for a client of that domain, which may have a channel to its server, for as long as it lived."""
    machine.start()
    with attacking(IDLE, machine.pipe / "control", uid=UIDS[1]) as idle:
        wait_for("it to count no more", lambda: not clients(machine, "default"), seconds=60)
        troupe = Troupe(machine, 2, 5.0)
        troupe.wait_for("a service with a standby", lambda: troupe.serving(0))
        machine.kill_daemon()
        machine.start()
        view = troupe.wait_for("a service with a standby", lambda: troupe.serving(0))
        write(machine.place / "machine/kmsg", DRIVERS, 31, idle.pid)
        [seen] = wait_for("the Xid", lambda: [each for each in machine.journal("fault.xid") if each["pid"] == idle.pid])
        assert seen["domain"] is None
        assert is_running(view.writer_pid)
        troupe.end()


# One connection, closed; a second one at SIGUSR1, which stays.
RETURNS = (
    CONNECTS
    + "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\nmade = connected()\n"
    + GREETS
    + """
made.close()
signal.sigwait({signal.SIGUSR1})
made = connected()
hear(GREETING)
say(UI)
hear(UI_READY)
print("back", flush=True)
time.sleep(600)
"""
)


def test_it_does_not_return_into_a_domain_that_a_lease_has_alone(machine: Machine) -> None:
    """With -multiuser-server each user's process could get a context there, and a fault then ended the client of the lease;
    without that option each process of the same user."""
    machine.start("-multiuser-server")
    lease(machine, "alone", 20, domain="own")
    with attacking(RETURNS, machine.pipe / "control", uid=UIDS[1]) as idle:
        wait_for("it to count no more", lambda: not clients(machine, "default"), seconds=60)
        alone = machine.counter(uid=UIDS[0], MPSD_LEASE=token("alone")).ready()
        assert machine.domain_of(alone) == "default"
        idle.send_signal(signal.SIGUSR1)
        assert idle.stdout is not None
        assert idle.stdout.readline() == "back\n"
        with machine.mpsd() as mpsd:
            domains = {each.pid: each.domain for each in mpsd.ask(calls.client_list()).items}
        assert domains[idle.pid] != domains[alone.pid]
