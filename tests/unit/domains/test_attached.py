"""A client with a channel to a server and no context: no list of the vendor's shows it, and its domain is not empty."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.domain_view import view_of
from mpsd.domains.handshake_gate import Entrant
from mpsd.domains.pool import Pool
from mpsd.domains.store import SqliteStore
from mpsd.domains.upkeep import Upkeep
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from tests.unit.domains.test_ending_strangers import Vendor

GPUS = ("GPU-a",)


def a_domain(vendor: Vendor) -> Domain:
    return Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]


async def test_its_place_is_taken_until_it_ends(autojump_clock: trio.testing.MockClock) -> None:
    """After ten seconds mpsd took the domain for empty, ended its server, or placed other users there, who hung."""
    process = ProcessId(os.getpid(), 1)  # it ends below
    domain = a_domain(Vendor())
    domain.join(process, 1000)
    with domain.handshake(process):
        domain.attach(process)
    await trio.sleep(3600.0)
    assert (domain.occupancy, view_of(domain, Defaults()).uid) == (1, 1000)
    domain.leave(process)
    assert domain.occupancy == 0


async def test_its_place_is_taken_too_where_it_has_left_the_domain(autojump_clock: trio.testing.MockClock) -> None:
    """It left while the domain was suspected for two seconds, and its server still had the channel."""
    process = processes.process_id(os.getpid())
    domain = a_domain(Vendor())
    domain.join(process, 1000)
    domain.attach(process)
    domain.leave(process)
    await trio.sleep(3600.0)
    assert (domain.occupancy, domain.members) == (1, {})
    domain.join(process, 1000)
    await trio.sleep(3600.0)
    assert domain.occupancy == 1, "it has come back"
    domain.leave(process)
    domain.forget()
    assert domain.occupancy == 0, "its server has ended"


async def test_its_place_is_taken_while_it_may_still_get_a_channel(autojump_clock: trio.testing.MockClock) -> None:
    """It left, or ended, in its handshake, as while a server starts for it.  Another user was placed there, and hung at the
    server for which it then had a channel."""
    process = processes.process_id(os.getpid())
    domain = a_domain(Vendor())
    domain.join(process, 1000)
    with domain.handshake(process):
        domain.leave(process)
        assert (domain.occupancy, view_of(domain, Defaults()).uid) == (1, 1000)
    assert domain.occupancy == 0


async def test_one_that_only_asked_for_a_daemon_takes_no_place_for_long(autojump_clock: trio.testing.MockClock) -> None:
    process = processes.process_id(os.getpid())
    domain = a_domain(Vendor())
    domain.join(process, 1000)
    with domain.handshake(process):
        pass
    domain.asked_at = 60.0
    await trio.sleep(9.0)
    assert not domain.forget_absent(), "its next connection may be on its way"
    await trio.sleep(2.0)
    with domain.handshake(process):
        assert not domain.forget_absent()
    await trio.sleep(11.0)
    assert domain.forget_absent() == [process]
    assert (domain.occupancy, domain.uids) == (0, {})


@pytest.mark.parametrize("is_listed", [True, False], ids=["a server lists it", "the log shows its context"])
async def test_one_with_a_context_is_not_forgotten(is_listed: bool, autojump_clock: trio.testing.MockClock) -> None:
    process = processes.process_id(os.getpid())
    domain = a_domain(Vendor())
    domain.join(process, 1000)
    if is_listed:
        domain.servers = {1: ServerView(1, 1000, "ACTIVE", (process.pid,), domain.name, GPUS)}
    else:
        domain.contexts = {1: Counter([process.pid])}
    domain.asked_at = 3600.0
    await trio.sleep(3600.0)
    assert not domain.forget_absent()


async def test_of_a_crowd_some_are_forgotten_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """To look at each of four thousand blocked the event loop for 0.15 s."""
    domain = a_domain(Vendor())
    crowd = {ProcessId(pid, 7) for pid in range(5_000_000, 5_001_000)}
    for process in crowd:
        domain.join(process, 1000)
    domain.asked_at = 60.0
    await trio.sleep(60.0)
    found = [domain.forget_absent() for _ in range(5)]
    assert [len(each) for each in found] == [256, 256, 256, 232, 0]
    assert set().union(*found) == crowd


async def test_one_that_the_vendor_daemon_was_not_asked_about_is_not_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    """It may be in a list by now."""
    process = processes.process_id(os.getpid())
    domain = a_domain(Vendor())
    await trio.sleep(1.0)
    domain.asked_at = trio.current_time()
    domain.join(process, 1000)
    domain.members[process] += 0.1
    await trio.sleep(3600.0)
    assert not domain.forget_absent()


async def test_a_client_costs_mpsd_one_descriptor_however_often_it_changes_its_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who stops their own server lets a process without a context leave: each new start cost a pidfd, to its end."""
    ended = trio.Event()
    waits: list[ProcessId] = []

    async def wait_ended(process: ProcessId) -> None:
        waits.append(process)
        await ended.wait()

    monkeypatch.setattr("mpsd.domains.pool.wait_ended", wait_ended)
    process = processes.process_id(os.getpid())
    store = SqliteStore(tmp_path / "mpsd.db")
    pool = Pool(None, None, (), Defaults(), store, None, None)  # type: ignore[arg-type]
    ends: list[ProcessId] = []
    pool.client_ended.subscribe(lambda process, ending: ends.append(process))
    pool.domains = {name: a_domain(Vendor()) for name in ("default", "d2")}
    async with trio.open_nursery() as pool._nursery:
        for domain in [*pool.domains.values()] * 50:
            domain.join(process, 1000)
            pool.watch(domain, process)
            await trio.testing.wait_all_tasks_blocked()
            domain.leave(process)
        domain.join(process, 1000)
        ended.set()
    assert (waits, ends) == ([process], [process])
    assert pool.home_of(process) is None


async def test_a_client_that_bypassed_mpsd_is_watched_but_no_member(tmp_path: Path) -> None:
    """A list of the vendor's showed it, and mpsd ended with a KeyError."""
    process = processes.process_id(os.getpid())
    store = SqliteStore(tmp_path / "mpsd.db")
    pool = Pool(None, None, (), Defaults(), store, None, None)  # type: ignore[arg-type]
    domain = pool.domains["default"] = a_domain(Vendor())
    async with trio.open_nursery() as pool._nursery:
        pool.watch(domain, process)
        assert list(store.members("default")) == []
        domain.join(process, 1000)
        pool.watch(domain, process)
        assert list(store.members("default")) == [], "it has no channel: to the next mpsd it is no client"
        domain.attach(process)
        pool.watch(domain, process)
        assert list(store.members("default")) == [(process, 1000)]
        domain.leave(process)
        other = a_domain(Vendor())
        other.join(process, 1000)
        pool.watch(other, process)
        assert list(store.members("default")) == [(process, 1000)], "it may still have the one in the domain that it has left"
        third = pool.domains["d3"] = a_domain(Vendor())
        third.name = "d3"
        pool.attach(third, process, 1000)
        assert list(store.members("d3")) == [(process, 1000)], "it got one by a connection that was still open when it left"
        pool._nursery.cancel_scope.cancel()
    store.close()


async def test_no_server_of_another_user_is_started_where_a_client_came_first() -> None:
    """The vendor daemon ended the starting server for it, and the client got error 806 from cuInit."""
    vendor = Vendor()
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["default"] = a_domain(vendor)
    upkeep = Upkeep(pool, 1.0, None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        async with domain.guard.window(Entrant("client"), vendor):
            nursery.start_soon(upkeep._warm, domain)
            await trio.testing.wait_all_tasks_blocked()
            domain.join(processes.process_id(os.getpid()), 1000)
    assert vendor.told == []


async def test_a_question_that_its_asker_gives_up_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    """The view counted as present, and after 2 s the domain as frozen, until mpsd's next question a minute later."""

    class Slow(Vendor):
        async def commands(self, lines: Sequence[str]) -> str:
            await trio.sleep(1.5)
            return ""

    domain = a_domain(Slow())
    domain.mark_stale()
    with trio.move_on_after(1.0) as given_up:
        await domain.refresh()
    assert given_up.cancelled_caught
    await domain.refresh()
    assert domain.asked_at == 1.0
    await trio.sleep(60.0)
    assert domain.is_answering
