"""The incidents: a client that has left its domain, or was forgotten there, and the domain that its faults are of."""

import signal

import pytest
import trio
import trio.testing

from mpsd.app.subscriptions import _has_company
from mpsd.host.process_exit import ProcessExit
from mpsd.model.fault import FaultClass
from tests.running import running
from tests.unit.faults.incident_world import IncidentWorld

KILLED = ProcessExit(signal.SIGKILL, 0)


@pytest.fixture
def world(tmp_path):
    return IncidentWorld(tmp_path)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["there again", "by a channel of before"])
async def test_one_that_was_forgotten_is_where_a_server_lists_it(world, autojump_clock, is_killed, is_elsewhere):
    """It had left the domain with a channel to the server, connected once to another one, and made its context by that channel:
    its fault was of no domain, and the other clients were suspects in place of it."""
    domain, other = world.domain(), world.domain("d2")
    [culprit, neighbour] = world.arrive(domain, 101, 102)
    if is_elsewhere:
        domain.attach(culprit)
        world.move(culprit, other)
    await trio.sleep(60)
    world.lists(domain, neighbour.pid)
    world.forget_absent()
    assert world.pool.home_of(culprit) is None
    world.lists(domain, culprit.pid, neighbour.pid)
    async with running(world.incidents.run):
        await trio.testing.wait_all_tasks_blocked()
        if is_killed:
            world.end(culprit, KILLED)
        else:
            world.prove(culprit, domain=(other if is_elsewhere else domain).name)
        world.xid(31, domain.name)
        world.say_fault(domain)
        await trio.sleep(60)
    assert {each.domain for each in world.told} == {domain.name}
    assert world.last.culprit == (None if is_killed else culprit)
    assert world.last.fault_class is (FaultClass.HOST if is_killed else FaultClass.MMU)
    assert world.last.suspects == ((culprit, neighbour) if is_killed else ())


@pytest.mark.parametrize("is_at_work", [False, True], ids=["without a context there", "with one there too"])
async def test_one_that_works_in_a_domain_that_it_has_left_is_there(world, autojump_clock, is_at_work):
    """It had a channel there and a connection to another domain.  Killed in the middle of a kernel, it was taken for one that
    ended in the other domain: mpsd held nothing of it there, and no evidence showed what ended the clients of the first."""
    domain, other = world.domain(), world.domain("d2")
    [culprit, neighbour] = world.arrive(domain, 101, 102)
    domain.leave(culprit)
    domain.channels = {culprit}
    other.join(culprit)
    world.incidents.arrived(culprit, other)
    world.lists(domain, culprit.pid, neighbour.pid)
    world.lists(other, *[culprit.pid] * is_at_work)
    async with running(world.incidents.run):
        await trio.testing.wait_all_tasks_blocked()
        assert world.incidents.parties.domain_of(culprit) == (other if is_at_work else domain).name
        assert _has_company(world.pool, world.incidents.parties, culprit, "default") is not is_at_work
        if not is_at_work:
            world.end(culprit, KILLED)
            world.xid(31, domain.name)
            world.say_fault(domain)
            await trio.sleep(60)
            assert (world.last.domain, world.last.fault_class) == (domain.name, FaultClass.HOST)


@pytest.mark.parametrize("has_channel", [False, True])
async def test_one_that_is_forgotten_before_it_arrived_is_where_it_has_a_channel(world, autojump_clock, has_channel):
    """It left its domain, and closed its next connection while it waited for its turn in another one: until its end it was
    a client of the domain that it had left, which another user has since."""
    domain, other = world.domain(), world.domain("d2")
    [idle] = world.arrive(domain, 101)
    domain.leave(idle)
    domain.channels |= {idle} if has_channel else set()
    other.join(idle)
    await trio.sleep(60)
    world.forget_absent()
    assert world.incidents.parties.domain_of(idle) == (domain.name if has_channel else "")
    world.incidents.arrived(idle, other)
    other.join(idle)
    await trio.sleep(60)
    world.forget_absent()
    assert world.incidents.parties.domain_of(idle) == (domain.name if has_channel else "")
