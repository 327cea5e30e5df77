"""MPS servers that end, domains that fault without a word, and where a member came to live: seen in the pool."""

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.service import MemberState, Phase
from mpsd.services.server_watch import Servers
from tests.unit.vault.house import Holder, a_process, until


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


async def test_the_end_of_a_server_is_that_of_its_clients_contexts(room, server):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        neighbour = await room.member("a", 9)  # of another server
        pool, _ = domain_with(server, first.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Servers(room.desk, pool).run)
            await trio.testing.wait_all_tasks_blocked()
            assert room.phase is Phase.SERVING
            server.end()
            await until(lambda: room.processes[first].was_killed)
            nursery.cancel_scope.cancel()
        assert (room.phase, room.order(standby)) == (Phase.FENCING, "standby")
        room.vault.fenced(first)
        assert (room.order(standby), room.order(neighbour)) == ("serve", "standby")


async def test_one_that_has_ended_before_it_was_looked_at(room, server):
    async with room.mpsd():
        first = await room.serves("a")
        pool, _ = domain_with(server, first.pid)
        server.end()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Servers(room.desk, pool).run)
            await until(lambda: room.processes[first].was_killed)
            nursery.cancel_scope.cancel()


async def test_a_domain_in_fault_is_seen_without_its_log(room, server):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        pool, _ = domain_with(server, first.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Servers(room.desk, pool).run)
            await trio.testing.wait_all_tasks_blocked()
            room.tear_down("a")
            room.faulted["a"] = trio.current_time()
            pool.notify()
            await until(lambda: room.order(standby) == "serve")
            nursery.cancel_scope.cancel()


async def test_where_one_lives_is_known_as_soon_as_the_pool_knows(room, server):
    async with room.mpsd():
        first = await room.serves("")
        pool, _ = domain_with(server, first.pid)
        servers = Servers(room.desk, pool)
        assert room.view().members[0].domain == ""
        room.processes[first].domain = "a"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(servers.run)
            await until(lambda: room.view().members[0].domain == "a")
            nursery.cancel_scope.cancel()
        assert room.view().members[0].standing is MemberState.READY
