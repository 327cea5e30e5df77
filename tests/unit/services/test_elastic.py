"""Elastic services: what their actives say of their work, which shares they are dealt, and when a pool stands still."""

import os

import pytest
import structlog
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import BadRequest, UnusablePath
from mpsd.model.process import ProcessId
from mpsd.model.service import Elasticity, Phase
from mpsd.services.elastic import ElasticShares
from mpsd.wire.forward_state import CONTROL, parse_control
from tests.unit.services.elastic_load import CHAT, FIRST, SECOND, Load
from tests.unit.services.fake_machine import OWNER


@pytest.fixture
def load(machine, monkeypatch):
    machine.vault.create("first")
    machine.vault.create("second")
    found = machine.vault.state_descriptor

    async def state_descriptor(arena_id: int) -> int:
        descriptor = await found(arena_id)
        return os.dup(descriptor) if descriptor >= 0 else -1

    monkeypatch.setattr(machine.vault, "state_descriptor", state_descriptor)
    monkeypatch.setattr(machine, "check_nobody_writes", lambda: None)  # it knows one arena only
    made = Load(machine)
    yield made
    for descriptor in made.states.values():
        os.close(descriptor)


async def test_shares_follow_need_and_come_back(load: Load, autojump_clock: MockClock) -> None:
    """A quiet time, then a burst.  Each move waits for the starters' handovers."""
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        assert load.shares() == pytest.approx([16.5, 41.2, 41.2], abs=0.11)
        await load.carry_out()
        load.busy[CHAT] = 1.0
        await load.work(8)
        assert load.shares() == pytest.approx([49.5, 24.7, 24.7], abs=0.11)
        assert sum(load.shares()) <= 99.0
        assert len(load.moved()) == 6


async def test_a_use_that_falls_moves_each_share_once(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        load.busy[CHAT] = 0.65
        await load.work(12)  # more than what counts
        assert not load.moved()
        load.busy[CHAT] = 0.1
        for _ in range(30):
            await load.work(0.5)
            if load.moved():
                break
        assert load.moved() == [("llm", 16.5), ("first", 41.2), ("second", 41.2)]


async def test_the_next_members_go_where_the_former_ones_are(load: Load, autojump_clock: MockClock) -> None:
    """Two busy domains take turns on a GPU: a pool whose members go to and fro between two does half its work."""
    machine = load.machine
    async with machine.mpsd():
        await load.begin()
        avoid = machine.enlisted.avoid
        load.change(FIRST, standbys=1)
        others = {}
        for arena_id, name in ((CHAT, "llm"), (FIRST, "first")):
            others[name] = machine.processes[machine.vault.made[arena_id].writer].domain
            standby = machine.process("")
            await machine.failover.enlist(name, OWNER, standby, OWNER)
            assert avoid(standby) == ({others[name]} if name == "first" else set())
        await load.rest()
        successor, second = machine.process("next"), machine.process("")
        for each in (successor, second):
            await machine.failover.enlist("first", OWNER, each, OWNER)
        assert (avoid(successor), avoid(second)) == (set(), {"next"})


async def test_nothing_moves_before_the_starters_have_done_it(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        await load.serve(FIRST)
        load.busy[CHAT] = 1.0
        await load.work(30)
        assert load.why() == "stands still: service llm has not been moved to its last share yet, by a handover of its starter"
        assert len(load.moved()) == 3


async def test_a_steady_load_moves_nothing(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        load.busy[CHAT] = 0.64
        await load.work(120)
        assert (load.shares(), load.moved()) == ([33.0] * 3, [])
        assert load.why() == "stands still: no share would change by 5 % or more"


async def test_a_changed_level_counts_from_then_on(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        await load.work(1)
        load.change(CHAT, elastic=Elasticity.BATCH)
        await load.work(8)
        assert (load.machine.coordinator.records[CHAT].share.level, load.shares()) == ("batch", [33.0] * 3)


async def test_one_that_says_nothing_moves_nothing(load: Load, autojump_clock: MockClock) -> None:
    """A program that never calls at_work has no time of work in its state: it must not count as idle."""
    async with load.machine.mpsd():
        await load.begin()
        load.busy[CHAT] = 0.0
        load.worked_ns[CHAT] = 0
        await load.work(20)
        assert load.moved() == []
        assert "has been seen for less than" in load.why()


async def test_a_liar_only_takes_from_its_owner_and_sinks(load: Load, autojump_clock: MockClock) -> None:
    """It says more work than there was time: that counts as busy all the time, and such a one is no interactive one."""
    async with load.machine.mpsd():
        await load.begin()
        load.busy[CHAT] = 50.0
        await load.work(8)
        assert load.shares() == pytest.approx([49.5, 24.7, 24.7], abs=0.11)
        for _ in range(2):
            await load.carry_out()
            await load.work(14)
        assert load.machine.coordinator.records[CHAT].share.level == "batch"
        assert load.shares() == pytest.approx([33.0] * 3, abs=0.11)


@pytest.mark.parametrize(("is_of_owner", "shares"), [(False, [16.5, 49.5, 33.0]), (True, [16.5, 41.2, 41.2])])
async def test_one_of_a_container_takes_nothing_from_its_owner_elsewhere(
    load: Load, is_of_owner: bool, shares: list[float], autojump_clock: MockClock
) -> None:
    """Root of that container can be every owner, unless its user namespace has the owner's uids alone."""
    made = load.machine.vault.made
    made[SECOND] = replace(made[SECOND], pid_namespace=7, is_of_owner=is_of_owner)
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        assert load.shares() == pytest.approx(shares, abs=0.11)


async def test_one_of_a_container_holds_up_nobody_elsewhere(load: Load, autojump_clock: MockClock) -> None:
    """It never does what it was dealt, nor reports any work."""
    made = load.machine.vault.made
    made[SECOND] = replace(made[SECOND], pid_namespace=7)
    async with load.machine.mpsd():
        await load.begin()
        load.machine.vault.become("state", replace(made[SECOND], state_serial=0))
        await load.rest()
        assert load.shares() == pytest.approx([16.5, 49.5, 33.0], abs=0.11)


async def test_a_killed_mpsd_knows_what_it_has_dealt(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        dealt = load.shares()
        load.change(CHAT, heartbeat_seconds=5.0)
    async with load.machine.mpsd():
        assert load.shares() == dealt != [33.0] * 3
        load.change(CHAT, elastic=Elasticity.OFF)
    async with load.machine.mpsd():
        assert load.machine.coordinator.records[CHAT].share is None


async def test_a_deal_that_cannot_be_stored_is_none(load: Load, autojump_clock: MockClock, monkeypatch) -> None:
    async with load.machine.mpsd():
        await load.begin()

        def deal(percent: object) -> None:
            raise UnusablePath("the disk is full")

        monkeypatch.setattr(load.machine.coordinator.store, "deal", deal)
        await load.rest()
        assert (load.shares(), load.moved(), load.why()) == ([33.0] * 3, [], "stands still: the disk is full")


def test_the_time_of_work_is_bounded() -> None:
    line = CONTROL.pack(b"m" * 16, b"", 3 * 10**9, 5 * 10**9) + bytes(16)
    assert parse_control(line, 7 * 10**9)[1].seconds == 5.0  # type: ignore[union-attr]
    assert parse_control(line, 4 * 10**9)[1].seconds == 3.0  # type: ignore[union-attr]
    with pytest.raises(BadRequest, match="found: 3"):
        parse_control(b"abc", 0)


async def test_a_restarted_mpsd_waits_for_a_move_under_way(load: Load, autojump_clock: MockClock) -> None:
    """The one that was killed had dealt; two starters have not moved their services yet when the next mpsd looks."""
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        dealt = load.shares()
        await load.serve(FIRST)
    async with load.machine.mpsd():
        await load.join_again()
        load.busy[CHAT] = 1.0
        await load.work(7)
        assert (load.shares(), load.moved()[3:]) == (dealt, [])
        assert "has not been moved to its last share yet" in load.why()
        await load.serve(CHAT)
        await load.serve(SECOND)
        await load.work(8)
        assert load.shares() == pytest.approx([49.5, 24.7, 24.7], abs=0.11)


async def test_a_standby_with_the_old_share_is_no_move(load: Load, autojump_clock: MockClock) -> None:
    """It was started before the deal, and serves after it: as when the active dies in the middle of a move."""
    async with load.machine.mpsd():
        await load.begin()
        standby = await load.stand_by(CHAT)
        await load.rest()
        await load.serve(FIRST)
        await load.serve(SECOND)
        await load.serve(CHAT, standby)
        load.busy[CHAT] = 1.0
        await load.work(30)
        assert "service llm has not been moved to its last share yet" in load.why()
        assert len(load.moved()) == 3


async def test_one_that_nobody_moves_is_left_out(load: Load, autojump_clock: MockClock) -> None:
    """Its starter has died.  The others get what it cannot have, and it counts with all that it may have, until it is moved."""
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        await load.serve(FIRST)
        await load.serve(SECOND)
        await load.work(100)
        assert load.shares() == pytest.approx([16.5, 41.2, 41.2], abs=0.11)
        await load.work(30)
        assert load.shares() == pytest.approx([16.5, 33.0, 33.0], abs=0.11)
        assert load.why().startswith("left out for now: service llm has not been moved")
        await load.carry_out()
        await load.work(8)
        assert load.shares() == pytest.approx([16.5, 41.2, 41.2], abs=0.11)


@pytest.mark.parametrize(("seconds", "shares"), [(30, [16.5, 41.2, 41.2]), (130, [16.5, 41.2, 49.5])], ids=["soon", "late"])
async def test_one_that_makes_way_for_its_successor_is_waited_for(
    load: Load, seconds: float, shares: list[float], autojump_clock: MockClock
) -> None:
    """Both do not fit, so that the service has no member until the successor has started."""
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        await load.serve(CHAT)
        await load.serve(SECOND)
        load.machine.failover.leave(FIRST, load.machine.vault.made[FIRST].writer)
        await load.work(seconds)
        assert load.shares() == pytest.approx(shares, abs=0.11)
        await load.serve(FIRST)
        await load.work(8)
        await load.carry_out()
        await load.work(8)
        assert load.shares() == pytest.approx([16.5, 41.2, 41.2], abs=0.11)


async def test_one_whose_successor_ended_at_once_ends_nothing_else(load: Load, autojump_clock: MockClock) -> None:
    """It made way before the look measured it, and no more afterwards: any user could end mpsd so."""
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        record = load.machine.coordinator.records[FIRST]
        assert record.dealt
        successor = ProcessId(4711, record.dealt.ticks + 1)
        record.service = replace(record.service, members=(), writer=successor, phase=Phase.FENCING)
        await load.machine.failover._elastic.look()
        assert load.shares() == pytest.approx([16.5, 41.2, 41.2], abs=0.11)
        assert load.why().startswith("stands still")


async def test_an_error_of_a_deal_ends_no_service(load: Load, autojump_clock: MockClock, monkeypatch) -> None:
    def fail(of: ElasticShares) -> None:
        raise KeyError

    monkeypatch.setattr(ElasticShares, "look", fail)
    async with load.machine.mpsd():
        with structlog.testing.capture_logs() as lines:
            await load.begin()
            await load.work(8)
    assert {line["event"] for line in lines} >= {"service.bug"}


async def test_one_that_leaves_the_pool_gets_back_what_it_lent(load: Load, autojump_clock: MockClock) -> None:
    async with load.machine.mpsd():
        await load.begin()
        await load.rest()
        await load.carry_out()
        load.change(CHAT, elastic=Elasticity.OFF)
        await load.work(8)
        batch = [load.machine.coordinator.records[each].share for each in (FIRST, SECOND)]
        assert [each.sm_percent for each in batch if each] == [33.0, 33.0]


@pytest.mark.parametrize(("percent", "dealt"), [(0.1, 0.05), (5e-324, 5e-324)], ids=["rounds to 0", "beyond the precision"])
async def test_a_tiny_share_is_more_than_nothing(load: Load, autojump_clock: MockClock, percent: float, dealt: float) -> None:
    """A user may ask for any share above 0: it keeps more than nothing when it shrinks, and the others move beside it."""
    async with load.machine.mpsd():
        await load.begin()
        load.change(CHAT, sm_percent=percent)
        load.change(FIRST, elastic=Elasticity.INTERACTIVE)
        await load.serve(CHAT)
        load.busy[CHAT] = load.busy[FIRST] = 0.2
        await load.work(8)
        assert load.shares() == pytest.approx([dealt, 16.5, 49.5], abs=0.11)
        assert min(load.shares()) > 0.0
        assert sum(load.shares()) <= 66.1
