"""Which domain an Xid is of: it names a pid, which another process can have by then."""

import errno
import os
import subprocess
from contextlib import contextmanager

import pytest
import trio

from mpsd.host import processes
from mpsd.host.processes import process_id
from mpsd.model.process import ProcessId
from tests.unit.faults.incident_world import EXITED, IncidentWorld


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
    await trio.sleep(2.1)
    assert world.incidents.domain_of_pid(pid) is None  # as of another process, which has ended too


@pytest.mark.parametrize("is_admitted", [True, False], ids=["admitted", "only listed"])
@pytest.mark.parametrize("is_alive", [True, False], ids=["a client that lives", "one that has ended"])
async def test_an_xid_of_a_process_that_cannot_be_read(tmp_path, autojump_clock, monkeypatch, is_alive, is_admitted):
    """Its user held a lock of /proc/PID, or it ended at once: its own fault, past MPS, was one of the domain's."""

    def refuse(pid):
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer")

    world = IncidentWorld(tmp_path)
    domain = world.domain()
    [client] = world.arrive(domain, 101)
    if is_admitted:
        domain.admit(client)
    world.lists(domain, client.pid)
    monkeypatch.setattr(processes, "_stat", refuse)
    if not is_alive:
        domain.members.pop(client)  # Domain.leave looks whether it has ended
        world.incidents.left(client, EXITED)
        assert world.incidents.domain_of_pid(client.pid) is domain  # it has died of the fault
    await trio.sleep(2.1)
    assert world.incidents.domain_of_pid(client.pid) is (domain if is_alive else None)


async def test_an_xid_of_a_client_that_mpsd_never_knew_is_not_of_the_domain_that_lists_it(tmp_path, autojump_clock):
    world = IncidentWorld(tmp_path)
    domain = world.domain()
    world.lists(domain, 4_194_305)
    assert world.incidents.domain_of_pid(4_194_305) is None
    domain.admit(ProcessId(4_194_305, 7))  # it ended before this mpsd began
    assert world.incidents.domain_of_pid(4_194_305) is None
