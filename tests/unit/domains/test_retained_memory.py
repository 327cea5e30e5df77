"""How long the memory of a client that has ended is not free."""

import socket
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.listed import listed_process
from mpsd.domains.pool import Pool
from mpsd.domains.sentinel_port import NoSentinel
from mpsd.domains.settings import PoolSettings
from mpsd.domains.store import SqliteStore
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from tests.unit.domains.test_adopting import GPUS, OWNER, PAUSE_SECONDS, Silent

DEAD = ProcessId(2**22 + 1, 1)  # over every kernel's limit of pids
SETTINGS_END = (0, 2, 48, 60.0, 60.0, PAUSE_SECONDS, PAUSE_SECONDS, False, (), None)


class Sentinel(NoSentinel):
    """One that runs, with a stopped client, until its pids are taken away."""

    pids = frozenset({1})


class World:
    """A pool with one domain in which one client was placed."""

    def __init__(self, directory: Path, client: ProcessId) -> None:
        self.store = SqliteStore(directory / "db")
        self.store.save_domain("d2", 2, GPUS, True)
        self.store.save_member("d2", client, OWNER)
        self.pool = Pool(PoolSettings(directory, *SETTINGS_END), None, (), Defaults(), self.store, None, None)  # type: ignore[arg-type]
        self.domain = Domain("d2", 2, GPUS, Silent(), 48)  # type: ignore[arg-type]
        self.domain.state, self.domain.sentinel = DomainState.READY, Sentinel()
        self.pool.domains["d2"] = self.domain
        self.freed: list[ProcessId] = []
        self.pool.retained.freed.subscribe(self.freed.append)

    def admit(self, client: ProcessId, nursery: trio.Nursery) -> None:
        """Let the client have a channel, and watch it in the nursery."""
        self.pool._nursery = nursery
        self.domain.join(client, OWNER)
        self.domain.attach(client)
        self.pool.watch(self.domain, client)

    def become(self, state: DomainState) -> None:
        self.domain.state = state
        self.pool.notify()

    def lists(self, *pids: int) -> None:
        """Report the server's list of clients, for which mpsd asks now."""
        self.domain.asked_at = trio.current_time()
        self.domain.servers = {1: ServerView(1, OWNER, "ACTIVE", pids, "d2", GPUS)}
        self.pool.notify()

    def lose_sentinel(self) -> None:
        self.domain.sentinel.pids = frozenset()  # type: ignore[misc]
        self.pool.notify()

    def is_stored(self, process: ProcessId) -> bool:
        return self.store.is_member(process)


@pytest.fixture
def client(child: "subprocess.Popen[bytes]") -> ProcessId:
    found = processes.find(child.pid)
    assert found is not None
    return found


@pytest.mark.parametrize("state", [DomainState.STOPPING, DomainState.DEAD])
async def test_it_is_free_once_the_sentinel_has_ended(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", state: DomainState
) -> None:
    """For all that happens to the domain before."""
    world = World(tmp_path, client)
    retained = world.pool.retained
    retained.has_adopted = True
    at_end: list[bool] = []
    world.pool.client_ended.subscribe(lambda process, ending: at_end.append(retained.has(process)))
    async with trio.open_nursery() as nursery:
        world.admit(client, nursery)
        world.become(DomainState.CONTAINED)
        assert retained.has(client), "the relay can notice its end first"
        child.kill()
        while not at_end:
            await world.pool.changed()
        world.become(state)
        await trio.testing.wait_all_tasks_blocked()
        assert (at_end, retained.has(client), world.is_stored(client), world.freed) == ([True], True, True, [])
        world.lose_sentinel()
        await trio.testing.wait_all_tasks_blocked()
        assert (retained.has(client), world.is_stored(client), world.freed) == (False, False, [client])


@pytest.mark.parametrize("turn", range(8))
async def test_an_exception_that_is_reported_before_the_end_counts(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", turn: int
) -> None:
    """A busy mpsd learns of both at once, and the order of its tasks is random."""
    world = World(tmp_path, client)
    world.pool.retained.has_adopted = True
    seen: list[bool] = []
    world.pool.client_ended.subscribe(lambda process, ending: seen.append(world.pool.retained.has(process)))
    sentinel, mpsd = socket.socketpair()

    async def hear() -> None:
        await trio.lowlevel.wait_readable(mpsd)
        world.become(DomainState.CONTAINED)

    with sentinel, mpsd:
        async with trio.open_nursery() as nursery:
            world.pool._nursery = nursery
            world.domain.join(client, OWNER)
            world.domain.attach(client)
            world.pool.watch(world.domain, client)
            nursery.start_soon(hear)
            await trio.testing.wait_all_tasks_blocked()
            sentinel.send(b"FAULT")
            child.kill()
            child.wait()
            while not seen:
                await world.pool.changed()
            world.lose_sentinel()
    assert seen == [True]


@pytest.mark.parametrize("state", [DomainState.READY, DomainState.FAULT])
async def test_in_other_domains_it_is_free_at_the_end(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", state: DomainState
) -> None:
    world = World(tmp_path, client)
    world.pool.retained.has_adopted = True
    async with trio.open_nursery() as nursery:
        world.admit(client, nursery)
        world.become(state)
        child.kill()
        while world.domain.members:
            await world.pool.changed()
        assert not world.pool.retained.has(client)
        assert not world.is_stored(client)


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "not listed yet"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["its children end", "its domain ends"])
async def test_it_is_free_once_no_server_lists_the_client(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", is_gone: bool, is_listed: bool
) -> None:
    """A child that it forked has its connections: one lease of a user's gave any number of clients its memory.  A client can
    take it and end between two questions of mpsd."""
    world = World(tmp_path, client)
    world.pool.retained.has_adopted = True
    at_end: list[bool] = []
    world.pool.client_ended.subscribe(lambda process, ending: at_end.append(world.pool.retained.has(process)))
    async with trio.open_nursery() as nursery:
        world.pool._nursery = nursery
        world.domain.join(client, OWNER)
        world.domain.attach(client)
        world.domain.admit(client)
        world.pool.watch(world.domain, client)
        world.lists(*[client.pid] * is_listed)
        child.kill()
        while not at_end:
            await world.pool.changed()
        world.lists(client.pid)
        await trio.testing.wait_all_tasks_blocked()
        assert (at_end, world.is_stored(client), world.freed) == ([True], True, [])
        world.domain.admit(ProcessId(client.pid, client.start_time + 1))
        world.lists(client.pid)
        await trio.testing.wait_all_tasks_blocked()
        assert world.freed == [], "a user may start processes until one has that pid"
        world.become(DomainState.GONE) if is_gone else world.lists()
        await trio.testing.wait_all_tasks_blocked()
        assert (world.is_stored(client), world.freed) == (False, [client])


async def test_it_is_free_once_the_server_of_a_domain_that_the_client_has_left_does_not_list_it(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]"
) -> None:
    """It made its context there by the channel that it kept, and its lease was free while its child held the memory."""
    world = World(tmp_path, client)
    pool, retained = world.pool, world.pool.retained
    retained.has_adopted = True
    at_end: list[bool] = []
    pool.client_ended.subscribe(lambda process, ending: at_end.append(retained.has(process)))
    other = pool.domains["d3"] = Domain("d3", 3, GPUS, Silent(), 48)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        world.admit(client, nursery)
        world.domain.admit(client)
        world.domain.leave(client)
        other.join(client, OWNER)
        pool.watch(other, client)
        assert world.store.members("d2") == [(client, OWNER)], "the next mpsd has to know its channel"
        world.lists(client.pid)
        assert retained.has(client), "the relay can notice its end first"
        child.kill()
        while not at_end:
            await pool.changed()
        world.lists(client.pid)
        await trio.testing.wait_all_tasks_blocked()
        assert (at_end, world.is_stored(client), world.freed) == ([True], True, [])
        world.lists()
        await trio.testing.wait_all_tasks_blocked()
        assert (world.is_stored(client), world.freed) == (False, [client])


@pytest.mark.parametrize("has_left", [False, True])
async def test_it_is_free_once_mpsd_has_released_a_killed_client(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", has_left: bool
) -> None:
    """mpsd keeps its GPU context for two seconds, so that its kernels can finish: a user who killed one client after another
    gave the memory of one lease to as many as started in that time.

    has_left: its domain's daemon has been started again since; mpsd keeps its context for those that came afterwards.
    """
    world, released = World(tmp_path, client), trio.Event()
    retained = world.pool.retained
    retained.has_adopted = True
    retained.is_held = lambda process: process == client and not released.is_set()
    retained.until_released = lambda process: released.wait()
    at_end: list[bool] = []
    world.pool.client_ended.subscribe(lambda process, ending: at_end.append(retained.has(process)))
    async with trio.open_nursery() as nursery:
        world.admit(client, nursery)
        if has_left:
            world.domain.forget()
        assert retained.has(client), "the relay can notice its end first"
        child.kill()
        while not at_end:
            await world.pool.changed()
        await trio.testing.wait_all_tasks_blocked()
        assert (at_end, world.is_stored(client), world.freed) == ([True], True, [])
        released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (retained.has(client), world.is_stored(client), world.freed) == (False, False, [client])


async def test_the_next_mpsd_takes_no_other_process_for_the_listed_one(tmp_path: Path, client: ProcessId) -> None:
    before = ProcessId(client.pid, 1)
    world = World(tmp_path, before)
    async with trio.open_nursery() as nursery:
        world.pool.retained.adopt(world.domain, nursery)
        world.lists(client.pid)
        assert listed_process(world.domain.admitted, client.pid) is None
        assert world.domain.uids == {before: OWNER}, "the domain counts against its user"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("state", [DomainState.READY, DomainState.CONTAINED, DomainState.GONE])
async def test_the_next_mpsd_waits_until_it_knows_the_state(tmp_path: Path, state: DomainState) -> None:
    """The sentinel reports a contained exception only once mpsd is connected."""
    world = World(tmp_path, DEAD)
    retained = world.pool.retained
    assert retained.has(DEAD)
    assert not retained.has(ProcessId(DEAD.pid, 2))
    world.become(DomainState.STARTING)
    world.domain.is_adopted = True
    async with trio.open_nursery() as nursery:
        retained.adopt(world.domain, nursery)
        retained.has_adopted = True
        await trio.testing.wait_all_tasks_blocked()
        assert retained.has(DEAD)
        world.domain.is_adopted = state is DomainState.GONE  # one that was never adopted
        world.domain.asked_at = trio.current_time()
        world.become(state)
        await trio.testing.wait_all_tasks_blocked()
        assert retained.has(DEAD) == (state is DomainState.CONTAINED)
        assert world.freed == ([] if state is DomainState.CONTAINED else [DEAD])
        nursery.cancel_scope.cancel()
