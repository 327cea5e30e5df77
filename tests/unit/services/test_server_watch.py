"""MPS servers that end, domains that fault without a word, and where a member came to live: seen in the pool."""

import pytest
import trio
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.fault import Source
from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase
from mpsd.services.rules.promotion_types import Silent
from mpsd.services.server_watch import Servers
from tests.running import running
from tests.unit.services.fake_machine import Process
from tests.unit.vault.machine import Holder, a_process, until


@pytest.fixture
def server():
    with a_process() as made:
        yield made


def domain_with(server: Holder, *pids: int) -> tuple[Pool, Domain]:
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["a"] = Domain("a", 1, ("GPU-a",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    pid = server.process.pid
    domain.servers = {pid: ServerView(pid, 0, "ACTIVE", pids, "a", domain.gpus)}
    return pool, domain


async def test_the_end_of_a_server_is_that_of_its_clients_contexts(machine, server):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        neighbour = await machine.member("a", 9)  # of another server
        pool, _ = domain_with(server, first.pid)
        async with running(Servers(machine.coordinator, pool).run):
            await trio.testing.wait_all_tasks_blocked()
            assert machine.phase is Phase.SERVING
            server.end()
            await until(lambda: machine.processes[first].was_killed)
        assert (machine.phase, machine.order(standby)) == (Phase.FENCING, "standby")
        machine.vault.fenced(first)
        assert (machine.order(standby), machine.order(neighbour)) == ("serve", "standby")


async def test_one_that_has_ended_before_it_was_looked_at(machine, server):
    async with machine.mpsd():
        first = await machine.serves("a")
        pool, _ = domain_with(server, first.pid)
        server.end()
        async with running(Servers(machine.coordinator, pool).run):
            await until(lambda: machine.processes[first].was_killed)


async def test_a_domain_in_fault_is_seen_without_its_log(machine, server):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        pool, _ = domain_with(server, first.pid)
        async with running(Servers(machine.coordinator, pool).run):
            await trio.testing.wait_all_tasks_blocked()
            machine.tear_down("a")
            machine.faulted["a"] = trio.current_time()
            pool.notify()
            await until(lambda: machine.order(standby) == "serve")


async def test_a_service_moves_out_of_a_contained_domain(machine, server):
    async with machine.mpsd():
        first = await machine.serves("a")
        pool, _ = domain_with(server, first.pid)
        async with running(Servers(machine.coordinator, pool).run):
            await trio.testing.wait_all_tasks_blocked()
            machine.contained.add("a")
            pool.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert (machine.phase, machine.order(first)) == (Phase.SERVING, "serve"), "it has no standby"
            standby = await machine.member("b")
            assert (machine.phase, machine.order(first)) == (Phase.YIELDING, "yield")
            assert "an SM exception was contained in domain a" in machine.told(first).why
            machine.failover.yielded(1, machine.vault.made[1].generation, first)
            assert machine.order(standby) == "serve"
            machine.serving(standby)
            assert machine.view().last.cause == "contained"


async def test_where_one_lives_is_known_as_soon_as_the_pool_knows(machine, server):
    async with machine.mpsd():
        first = await machine.serves("")
        pool, _ = domain_with(server, first.pid)
        servers = Servers(machine.coordinator, pool)
        assert machine.view().members[0].domain == ""
        machine.processes[first].domain = "a"
        async with running(servers.run):
            await until(lambda: machine.view().members[0].domain == "a")
        assert machine.view().members[0].standing is MemberState.READY


@pytest.mark.parametrize("is_moved", [False, True], ids=["it is in no domain", "it is in another one"])
async def test_one_that_has_left_a_domain_does_not_end_with_those_who_have_it_since(machine, server, is_moved):
    """It had only connected there when it joined.  A fault of another user in that domain ended it."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("c")
        pool, domain = domain_with(server)
        servers = Servers(machine.coordinator, pool)
        pool.member_forgotten.subscribe(servers.forgotten)
        domain.members[first] = domain.asked_at = trio.current_time() - 11.0
        domain.asked_at += 1.0
        async with running(servers.run):
            if is_moved:
                domain.leave(first)
                pool.domains["b"] = Domain("b", 2, ("GPU-a",), None, 48, members={first: trio.current_time()})  # type: ignore[arg-type]
                machine.processes[first].domain = "b"
                servers.look()
            else:
                pool.forget_absent()
            machine.see(Source.VENDOR_LOG, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert machine.view().members[0].domain == ("b" if is_moved else "")
            assert (machine.phase, machine.order(first), machine.order(standby)) == (Phase.SERVING, "serve", "standby")
            machine.see(Source.VENDOR_LOG, "b")
            await trio.testing.wait_all_tasks_blocked()
            assert (machine.phase is Phase.SERVING) is not is_moved


@pytest.mark.parametrize("joined_in", ["", "a"])
async def test_a_fault_in_a_domain_shows_nothing_of_one_that_came_there_later(machine, server, joined_in):
    """A standby became the writer of the arena while kernels of the active could still write to it."""
    async with machine.mpsd():
        first = await machine.serves(joined_in)
        standby = await machine.member("c")
        pool, _ = domain_with(server)
        machine.xid(43, "b")
        await trio.sleep(0.01)
        pool.domains["b"] = Domain("b", 2, ("GPU-a",), None, 48, members={first: trio.current_time()})  # type: ignore[arg-type]
        machine.processes[first].domain = "b"
        Servers(machine.coordinator, pool).look()
        assert machine.view().members[0].domain == "b"
        machine.coordinator.tell(machine.coordinator.records[1], Silent(first))
        assert (machine.phase, machine.order(standby)) == (Phase.FENCING, "standby")
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"


async def test_one_whose_server_ends_with_the_daemon_stays_in_its_domain_until_the_end_is_seen(machine, server):
    async with machine.mpsd():
        first = await machine.serves("a")
        pool, domain = domain_with(server, first.pid)
        servers = Servers(machine.coordinator, pool)
        async with running(servers.run):
            await trio.testing.wait_all_tasks_blocked()
            servers.forgotten(first, domain)
            server.end()
            await until(lambda: machine.processes[first].was_killed)


async def test_members_that_are_in_no_domain_are_not_looked_for_one_by_one(machine, server):
    """2,048 of them cost 33 ms of the event loop at each change of a domain, by what one user could do."""
    async with machine.mpsd():
        first = await machine.serves("")
        for _ in range(9):
            await machine.member("")
        pool, _ = domain_with(server, first.pid)
        asked: list[ProcessId] = []
        machine.coordinator.parts = replace(machine.coordinator.parts, domain_of=asked.append)
        Servers(machine.coordinator, pool).look()
        assert asked == [first]


async def test_a_later_process_with_the_pid_of_a_client_loses_nothing(machine, server):
    """The server's list of its clients may be old: what counts is the process that had the pid when the list was read."""
    async with machine.mpsd():
        first = await machine.serves("a")
        pool, domain = domain_with(server, first.pid)
        servers = Servers(machine.coordinator, pool)
        async with running(servers.run):
            await trio.testing.wait_all_tasks_blocked()
            machine.failover.leave(1, first)
            machine.vault.close(first)
            domain.servers = {}
            later = ProcessId(first.pid, first.start_time + 1)
            machine.processes[later] = Process(later, "a")
            machine.vault.open(later)
            await machine.failover.join(1, later, 0, 0.0)
            machine.failover.ready(1, later)
            machine.serving(later)
            other = await machine.member("b")
            server.end()
            await until(lambda: not servers._clients)  # its end was handled
        assert (machine.phase, machine.order(later), machine.order(other)) == (Phase.SERVING, "serve", "standby")


async def test_an_ended_writer_of_another_service_is_not_taken_for_a_later_process_with_its_pid(machine, server):
    """It stays in its service until its work on the GPU has ended, and hid the living one from the end of the server."""
    async with machine.mpsd():
        first = await machine.serves("a")
        pool, _ = domain_with(server, first.pid)
        before = ProcessId(first.pid, first.start_time - 1)
        machine.processes[before] = Process(before, "a")
        other = machine.vault.create("other")
        machine.vault.open(before, other.id)
        await machine.failover.join(other.id, before, 0, 0.0)
        machine.coordinator.records[other.id].instances[before].is_gone = True  # as it is for a writer
        async with running(Servers(machine.coordinator, pool).run):
            await trio.testing.wait_all_tasks_blocked()
            server.end()
            await until(lambda: machine.processes[first].was_killed)
