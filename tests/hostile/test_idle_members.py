"""A process that has once connected to mpsd, in the domain that another user has since."""

from mpsd_client import calls

from tests.hostile.attacker import SPEAKS_COMMANDS, attacking
from tests.hostile.test_kernel_log import DRIVERS, write
from tests.integration.failovers import Troupe
from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, wait_for

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
