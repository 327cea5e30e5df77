"""Many clients wait for a domain: the cost of each change, and the reason that each client gets."""

from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import Create, Join, PlacementRequest, Rules, Wait
from mpsd.domains.services_port import DomainsOf
from mpsd.errors import Stopping
from mpsd.model.domain import Defaults, DomainState, DomainView
from mpsd.model.process import ProcessId

USERS, EACH = 5, 40
GPUS = frozenset({"GPU-a"})


class FullPool(Pool):
    """No domain takes a client until `free` names one; counts the decisions."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(is_multiuser=False), None, (), None, None, None, None)  # type: ignore[arg-type]
        self.decided = 0
        self.why, self.is_own = "full", False
        self.free: Domain | None = None
        self.placed: list[int] = []

    def rules(self, gpus: frozenset[str]) -> Rules:
        return Rules(8)

    def decide(self, ask: PlacementRequest, process: ProcessId | None, views: list[DomainView]) -> Join | Wait:
        self.decided += 1
        is_free = self.free is not None and self.free.joined_uid in (None, ask.uid)
        return Join("default") if is_free else Wait(self.why, self.is_own)

    def place_now(self, ask: PlacementRequest, process: ProcessId | None) -> Domain | None:
        if self.is_stopping:
            raise Stopping("quits")
        if self.free is None or self.free.joined_uid not in (None, ask.uid):
            return None
        self.free.join(process, ask.uid)
        self.placed.append(process.pid if process else 0)
        return self.free


@asynccontextmanager
async def crowd(pool: Pool, processes: list[ProcessId], users: int) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool._queue.run)
        for process in processes:
            nursery.start_soon(pool.place, PlacementRequest(process.pid % users, GPUS), process)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1.0)
        yield
        nursery.cancel_scope.cancel()


async def change(pool: Pool) -> None:
    pool.notify()
    await trio.sleep(1.0)


async def test_a_change_decides_once_for_all_new_users_and_tells_every_client(autojump_clock: trio.testing.MockClock) -> None:
    """Each of 2,000 clients of 200 users looked for itself: 112 were served in 120 s, and mpsd's processor was the limit."""
    pool = FullPool()
    processes = [ProcessId(pid, 1) for pid in range(1, USERS * EACH + 1)]
    async with crowd(pool, processes, USERS):
        pool.decided, pool.why = 0, "still full"
        await change(pool)
        assert pool.decided <= 2, "one for uid 0, an operator, and one for all others"
        assert [wait.reason for wait in pool.waits.listed()] == ["still full"] * len(processes)
        assert pool.waits.because_of_the_machine()[0] == len(processes)
        pool.is_own = True
        await change(pool)
        assert pool.waits.because_of_the_machine() == (0, None)


async def test_a_change_decides_once_for_all_keys_that_no_domain_has(autojump_clock: trio.testing.MockClock) -> None:
    """A decision for each of 256 keys of leases took 23 ms of the event loop, for 2,000 keys 121 ms."""
    pool = FullPool()
    home = Domain("default", 1, ("GPU-a",), None, 48, state=DomainState.READY, applied_defaults=Defaults())
    home.join(ProcessId(9000, 1), 1, "key 7")
    pool.domains["default"] = home
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool._queue.run)
        for pid in range(1, 257):
            nursery.start_soon(pool.place, PlacementRequest(1, GPUS, f"key {pid}"), ProcessId(pid, 1))
        await trio.sleep(1.0)
        pool.decided, pool.why = 0, "still full"
        await change(pool)
        assert pool.decided == 2, "one for the key of the domain, and one for all others"
        assert [wait.reason for wait in pool.waits.listed()] == ["still full"] * 256
        nursery.cancel_scope.cancel()


class OneService:
    """All processes have enlisted for one service, whose other members are in every domain; counts who asks where they are."""

    def __init__(self) -> None:
        self.asked = 0

    def service_of(self, process: ProcessId | None) -> Hashable:
        return "llm" if process is not None else None

    def domains_of_others(self, process: ProcessId | None, domains_of: DomainsOf) -> frozenset[str]:
        self.asked += process is not None
        return frozenset({"default"} if process is not None else ())


class PlacingPool(FullPool):
    """Decides as the daemon's, for domains with one place each; a domain that it needs never starts."""

    decide, place_now = Pool.decide, Pool.place_now  # type: ignore[assignment]
    created = 0

    def begin_domain(self, decision: Create) -> None:
        self.created += 1
        self.domains["new"] = Domain("new", 2, ("GPU-a",), None, 48, state=DomainState.STARTING)


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_change_looks_once_for_the_other_members_of_a_service(
    is_full: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """For each of 700 processes of one service mpsd looked where all others are: 1.3 s of the event loop, again and again."""
    pool = PlacingPool()
    pool.services, pool.defaults = (asked := OneService()), Defaults()
    home = Domain("default", 1, ("GPU-a",), None, 1 if is_full else 48, state=DomainState.READY, applied_defaults=Defaults())
    home.join(ProcessId(9000, 1), 0)
    home.attach(ProcessId(9000, 1))
    pool.domains["default"] = home
    async with crowd(pool, [ProcessId(pid, 1) for pid in range(1, 101)], 1):
        assert pool.created == 1
        asked.asked = 0
        await change(pool)
        assert asked.asked == (0 if is_full else 1)
        reasons = {wait.reason for wait in pool.waits.listed()}
        assert (reasons, len(pool.waits.listed())) == ({"its fault domain is starting"}, 100)


async def test_a_change_decides_once_for_all_sets_of_gpus_that_clients_name(autojump_clock: trio.testing.MockClock) -> None:
    """2,400 processes of one user, each with another CUDA_VISIBLE_DEVICES, took 100 ms of the event loop for each change."""

    class CountingPool(PlacingPool):
        def decide(self, ask: PlacementRequest, process: ProcessId | None, views: list[DomainView]) -> Join | Create | Wait:  # type: ignore[override]
            self.decided += 1
            return Pool.decide(self, ask, process, views)

    pool, gpus = CountingPool(), [f"GPU-{number}" for number in range(8)]
    pool.defaults = Defaults()
    pool.begin_domain(Create(frozenset(gpus)))
    pool.domains["new"].gpus = tuple(gpus)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool._queue.run)
        for pid in range(1, 256):
            named = frozenset(gpu for bit, gpu in enumerate(gpus) if pid & 1 << bit)
            nursery.start_soon(pool.place, PlacementRequest(1, frozenset(gpus), named=named), ProcessId(pid, 1))
        await trio.sleep(1.0)
        pool.decided = 0
        await change(pool)
        assert pool.decided == 1
        pool.drain_gpu("GPU-7", "it has failed")
        pool.decided = 0
        await change(pool)
        assert pool.decided == 2
        reasons = {wait.process.pid: wait.reason for wait in pool.waits.listed()}
        assert {pid for pid, why in reasons.items() if why == "GPU GPU-7 takes no clients: it has failed"} == {*range(128, 256)}
        assert {why for pid, why in reasons.items() if pid < 128} == {"its fault domain is starting"}
        nursery.cancel_scope.cancel()


async def test_many_changes_at_once_cost_one_look(autojump_clock: trio.testing.MockClock) -> None:
    pool = FullPool()
    async with crowd(pool, [ProcessId(1, 1)], USERS):
        pool.decided = 0
        for _ in range(100):
            pool.notify()
        await trio.sleep(1.0)
        assert pool.decided == 1


async def test_the_user_who_waits_longest_gets_a_free_domain_and_all_clients_of_that_user_go_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """400 clients wrote 11,540 lines in 45 s."""
    pool = FullPool()
    async with crowd(pool, [ProcessId(pid, 1) for pid in range(1, 13)], 3):
        pool.free = Domain("default", 1, ("GPU-a",), None, 48, state=DomainState.READY, applied_defaults=Defaults())
        await change(pool)
        assert pool.placed == [1, 4, 7, 10]
        assert sorted(wait.process.pid for wait in pool.waits.listed()) == [2, 3, 5, 6, 8, 9, 11, 12]


async def test_a_client_that_comes_while_others_wait_does_not_pass_them(autojump_clock: trio.testing.MockClock) -> None:
    pool = FullPool()
    async with crowd(pool, [ProcessId(1, 1)], 3):
        async with trio.open_nursery() as nursery:
            pool.free = Domain("default", 1, ("GPU-a",), None, 48, state=DomainState.READY, applied_defaults=Defaults())
            nursery.start_soon(pool.place, PlacementRequest(2, GPUS), ProcessId(2, 1))
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert pool.placed == [1]


async def test_another_connection_of_a_placed_process_follows_it(autojump_clock: trio.testing.MockClock) -> None:
    pool = FullPool()
    process = ProcessId(1, 1)
    found: list[Domain] = []
    home = Domain("default", 1, ("GPU-a",), None, 48, state=DomainState.READY, applied_defaults=Defaults())
    pool.place_now = lambda ask, process: pool._home_now(ask, process)  # type: ignore[method-assign]

    async def connect() -> None:
        found.append(await pool.place(PlacementRequest(1, GPUS), process))

    async with crowd(pool, [ProcessId(2, 1)], 3), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(connect)
        await trio.sleep(1.0)
        home.hindrance = "not looked at"
        pool.domains["default"] = home
        home.join(process, 1)
        pool._queue.note_placed(process)
        await trio.sleep(1.0)
        assert found == [home] * 3


async def test_all_are_told_when_mpsd_quits(autojump_clock: trio.testing.MockClock) -> None:
    pool = FullPool()
    with pytest.RaisesGroup(*[Stopping] * 3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool._queue.run)
            for pid in (1, 2, 3):
                nursery.start_soon(pool.place, PlacementRequest(pid, GPUS), ProcessId(pid, 1))
            await trio.sleep(1.0)
            pool.stopping.set()
            await change(pool)
            nursery.cancel_scope.cancel()


async def test_what_domains_do_is_told_to_those_who_ask_and_is_no_line_of_the_log_for_each_who_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """400 clients wrote 11,540 lines in 45 s."""
    pool = FullPool()
    pool.why = "all domains are taken: d1 ready 0/48"
    with capture_logs() as lines:
        async with crowd(pool, [ProcessId(pid, 1) for pid in range(1, EACH + 1)], 1):
            for number in range(1, 3):
                pool.why = f"all domains are taken: d1 ready {number}/48"
                await change(pool)
            assert {wait.reason for wait in pool.waits.listed()} == {pool.why}
            pool.why = "GPU-a takes no clients: an operator drained it"
            await change(pool)
            pool.why = "all domains are taken: d1 ready 3/48"
            await change(pool)
    reasons = Counter(line["reason"] for line in lines if line["event"] == "client.waiting")
    assert reasons == {"all domains are taken: d1 ready 0/48": EACH, "GPU-a takes no clients: an operator drained it": EACH}
