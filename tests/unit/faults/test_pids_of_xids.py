"""Which domain an Xid is of: it names a pid, which another process can have by then."""

import os
import subprocess
from contextlib import contextmanager

from mpsd.host.processes import process_id
from mpsd.model.process import ProcessId
from tests.unit.faults.incident_world import IncidentWorld


@contextmanager
def other_process():
    """Yield a process, and a function that ends it; it is reaped afterwards."""
    with subprocess.Popen(["sleep", "600"]) as other:

        def end() -> None:
            other.kill()
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)

        try:
            yield process_id(other.pid), end
        finally:
            other.kill()


async def test_an_xid_of_a_process_with_the_pid_of_an_ended_client_is_not_of_its_domain(tmp_path, autojump_clock):
    """Any user, who needs no MPS for it, had the actives there fenced, and the domain closed to newcomers, again and again."""
    world = IncidentWorld(tmp_path)
    domain, second = world.domain(), world.domain("d2")
    with other_process() as (alive, end):
        pid, ended = alive.pid, ProcessId(alive.pid, alive.start_time - 1)
        world.move(ended, domain)
        domain.admit(ended)
        world.lists(domain, ended.pid)
        world.end(ended)
        assert world.incidents.domain_of_pid(pid) is None
        world.move(alive, second)
        assert world.incidents.domain_of_pid(pid) is second
        second.leave(alive)
        end()
        assert world.incidents.domain_of_pid(pid) is None  # its parent has not reaped it
    assert world.incidents.domain_of_pid(pid) is domain  # as of a client that has died of the fault
