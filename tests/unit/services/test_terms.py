"""The active, the order that each member gets, and the receivers of events about it."""

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, MemberState, Order, Phase, ServiceSettings


async def test_the_first_that_is_ready_serves(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.member("a", is_ready=False)
        assert (machine.order(first), machine.phase) == ("standby", Phase.IDLE)
        told = machine.failover.ready(1, first)
        assert (told.order, told.generation, told.writer) == (Order.SERVE, 1, first)
        assert machine.phase is Phase.PROMOTING
        machine.serving(first)
        view = machine.view()
        assert (view.phase, view.writer, view.generation, view.promotions) == (Phase.SERVING, first, 1, 1)
        last = view.last
        assert (last.cause, last.from_pid, last.to_pid, last.fence_ms) == (Cause.FIRST, None, first.pid, None)
        assert view.protection == "it has no standby"


async def test_whoever_ended_is_followed_by_the_next_once_it_is_fenced(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        later, next_ = await machine.member("c", 2), await machine.member("b", 1)
        await machine.die(first)
        assert (machine.phase, machine.order(next_), set(machine.vault.hurried)) == (Phase.FENCING, "standby", {first})
        await trio.sleep(0.2)
        machine.vault.fenced(first)
        assert (machine.order(next_), machine.order(later), machine.told(next_).generation) == ("serve", "standby", 2)
        await trio.sleep(0.003)
        machine.serving(next_)
        last = machine.view().last
        assert (last.cause, last.from_pid, last.to_pid) == (Cause.ENDED, first.pid, next_.pid)
        assert (last.fence_ms, last.promote_ms) == (pytest.approx(200), pytest.approx(3))
        assert [facts["cause"] for facts in machine.topics("promoted")] == ["first", "ended"]


async def test_who_waits_is_answered_when_something_is_new(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        told = machine.told(standby)
        answers = []

        async def follow() -> None:
            answers.append(await machine.failover.follow(1, standby, told.serial, 60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            machine.vault.close(first)
        [answer] = answers
        assert (answer.order, answer.generation) == (Order.SERVE, 2)
        assert answer.serial > told.serial
        again = await machine.failover.follow(1, standby, answer.serial, 0.5)
        assert again == answer


async def test_who_is_to_serve_is_answered_before_all_else(machine, autojump_clock: MockClock):
    """In the call that fences the old active, once that is stored and before any other notification; others in turn."""
    async with machine.mpsd():
        first, standby, other = await machine.serves("a"), await machine.member("b"), await machine.member("c", 1)
        at_once, answers = [], []

        async def follow(process: ProcessId) -> None:
            serial = machine.told(process).serial
            answers.append(await machine.failover.follow(1, process, serial, 60, at_once.append))

        machine.vault.told = lambda what, arena: told.append((what, len(at_once))) or machine.coordinator.heard_of(what, arena)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, standby)
            nursery.start_soon(follow, other)
            await trio.testing.wait_all_tasks_blocked()
            told: list[tuple[str, int]] = []
            machine.vault.close(first)
            assert [(each.order, each.generation) for each in at_once] == [(Order.SERVE, 2)]
            assert (machine.vault.made[1].writer, told) == (standby, [("closed", 0), ("opened", 1)])
            assert answers == []
        assert sorted(each.order for each in answers) == [Order.SERVE, Order.STANDBY]
        assert at_once[0] in answers
        assert not any(instance.asking for instance in machine.coordinator.records[1].instances.values())


async def test_who_knows_more_already_is_not_answered_at_once(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby = await machine.serves("a"), await machine.member("b")
        at_once: list[object] = []
        async with trio.open_nursery() as nursery:
            serial = machine.told(standby).serial + 1000
            nursery.start_soon(machine.failover.follow, 1, standby, serial, 0.5, at_once.append)
            await trio.testing.wait_all_tasks_blocked()
            machine.vault.close(first)
        assert (machine.order(standby), at_once) == ("serve", [])


async def test_everybody_is_told_of_a_commit(machine, autojump_clock: MockClock):
    """A standby maps what was committed before it takes over."""
    async with machine.mpsd():
        first, standby = await machine.serves("a"), await machine.member("b")
        arena = replace(machine.vault.made[1], commit=5, layout_hash="abc", state_serial=3)
        machine.vault.become("committed", arena)
        for each in (first, standby):
            told = await machine.failover.follow(1, each, machine.told(each).serial - 1, 10)
            assert (told.commit, told.layout_hash, told.state_serial) == (5, "abc", 3)


async def test_a_handover_makes_a_standby_of_the_one_that_served(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b"), await machine.member("c")
        done = []

        async def hand_over() -> None:
            done.append(await machine.failover.handover(1, third.pid, 30))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hand_over)
            await trio.testing.wait_all_tasks_blocked()
            assert (machine.order(first), machine.phase) == ("yield", Phase.YIELDING)
            await trio.sleep(0.5)
            told = machine.failover.yielded(1, 1, first)
            assert told.order is Order.STANDBY
            assert (machine.order(third), machine.order(second)) == ("serve", "standby")
            machine.serving(third)
            assert machine.failover.yielded(1, 1, first).order is Order.STANDBY  # it did not get the answer
        assert (done[0].from_pid, done[0].to_pid, done[0].seconds) == (first.pid, third.pid, pytest.approx(0.5, abs=0.01))
        assert machine.view().last.cause is Cause.ASKED
        standings = {member.process: member.standing for member in machine.view().members}
        assert standings == {first: MemberState.WARMING, second: MemberState.READY, third: MemberState.READY}


async def test_what_befalls_others_in_a_handover_is_not_why_it_was(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b"), await machine.member("c")
        with trio.move_on_after(0):
            await machine.failover.handover(1, second.pid, 0)
        await machine.die(third)
        machine.failover.yielded(1, 1, first)
        machine.serving(second)
        assert (machine.view().last.cause, machine.view().last.from_pid) == (Cause.ASKED, first.pid)


async def test_a_handover_that_cannot_be_is_refused(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        with pytest.raises(NoSuchArena):
            await machine.failover.handover(1, None, 1)
        await machine.serves("a")
        with pytest.raises(ArenaBusy, match="no standby is ready"):
            await machine.failover.handover(1, None, 1)
        with pytest.raises(BadRequest, match="pid 4711 is not a member"):
            await machine.failover.handover(1, 4711, 1)
        warming = await machine.member("b", is_ready=False)
        with pytest.raises(ArenaBusy, match="is not a ready standby"):
            await machine.failover.handover(1, warming.pid, 1)


async def test_a_handover_to_one_that_ends_meanwhile_fails_and_the_one_that_serves_goes_on(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second = await machine.member("b")
        async with trio.open_nursery() as nursery:

            async def hand_over() -> None:
                with pytest.raises(ArenaBusy, match="continues"):
                    await machine.failover.handover(1, None, 30)

            nursery.start_soon(hand_over)
            await trio.testing.wait_all_tasks_blocked()
            await machine.die(second)
        assert (machine.order(first), machine.phase) == ("serve", Phase.SERVING)
        assert trio.current_time() == pytest.approx(4, abs=0.1)


async def test_a_handover_that_is_not_over_in_time_says_so(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        await machine.member("b")
        with pytest.raises(ArenaBusy, match="not handed over yet: it is yielding"):
            await machine.failover.handover(1, None, 1)


async def test_who_does_not_take_over_in_time_is_ended_and_the_next_one_promoted(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        slow = await machine.member("a")
        next_ = await machine.member("b")
        assert machine.order(slow) == "serve"
        await trio.sleep(4.01)
        assert machine.order(slow) == "leave"
        await trio.sleep(1.1)  # it may let go by itself
        assert machine.ended == [slow]
        machine.vault.fenced(slow)
        assert machine.order(next_) == "serve"
        machine.serving(next_)
        assert machine.view().last.cause is Cause.FAILED


async def test_who_says_that_it_failed_leaves(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b"), await machine.member("c")
        machine.failover.failed(1, second, "no memory")
        assert (machine.told(second).order, machine.told(second).why) == (Order.LEAVE, "it reported that it failed: no memory")
        machine.failover.failed(1, first, "an assertion")
        assert (machine.order(first), machine.phase) == ("leave", Phase.FENCING)
        machine.vault.close(first)  # as ordered
        assert (machine.order(third), machine.ended) == ("serve", [])


async def test_a_writer_that_leaves_has_stopped(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second = await machine.member("b")
        machine.failover.leave(1, first)
        assert machine.order(second) == "serve"
        with pytest.raises(NotAllowed):
            await machine.failover.follow(1, first, None, 0)


async def test_a_promotion_that_the_vault_refuses_is_that_members_last(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b"), await machine.member("c")
        machine.vault.refusal = NotAllowed("it has it not open")
        machine.vault.close(first)
        assert (machine.order(second), machine.order(third)) == ("leave", "serve")
        assert "it has it not open" in machine.told(second).why


async def test_while_nobody_serves_its_protection_says_why(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.member("a", is_ready=False)
        assert machine.view().protection == "no member serves: no standby is ready"
        machine.failover.ready(1, first)
        assert machine.view().protection == f"no member serves: pid {first.pid} is taking over"
        machine.serving(first)
        second = await machine.member("b")
        assert machine.view().protection == ""
        await machine.die(first)
        assert machine.view().protection == f"no member serves: pid {first.pid} is being fenced"
        machine.vault.fenced(first)
        machine.serving(second)
        assert machine.view().protection == "it has no standby"


async def test_what_one_says_of_another_term_counts_for_nothing(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.member("a")
        second = await machine.member("b")
        for generation, process in ((0, first), (2, first), (1, second)):
            with pytest.raises(StaleGeneration):
                machine.failover.serving(1, generation, process)
        for generation, process in ((0, first), (2, first), (2, second)):
            with pytest.raises(StaleGeneration):
                machine.failover.yielded(1, generation, process)
        assert machine.failover.yielded(1, 1, second).order == "standby"
        assert machine.phase is Phase.PROMOTING


async def test_only_who_has_joined_is_told_something(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        stranger = machine.process("a")
        with pytest.raises(NotAllowed, match="not open"):
            await machine.failover.join(1, stranger, 0, 0)
        machine.vault.open(stranger)
        for ask in (machine.failover.ready, machine.failover.leave):
            with pytest.raises(NotAllowed, match="has not joined"):
                ask(1, stranger)
        with pytest.raises(NotAllowed):
            await machine.failover.follow(1, stranger, None, 0)
        assert machine.failover.services() == []


async def test_nobody_joins_where_nobody_can_write(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        process = machine.process("a")
        machine.vault.open(process)
        machine.vault.made[1] = replace(machine.vault.made[1], is_sealed=True)
        with pytest.raises(ArenaSealed):
            await machine.failover.join(1, process, 0, 0)


async def test_a_member_that_joins_again_is_the_member_that_it_was(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        again = await machine.failover.join(1, first, 0, 0)
        assert again == machine.told(first)
        assert len(machine.view().members) == 1


async def test_who_does_not_ask_any_more_is_passed_over_until_it_does(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        silent, asks = await machine.member("b", 0), await machine.member("c", 1)
        with trio.move_on_after(10.1):
            while True:
                await machine.failover.follow(1, asks, 0, 1)
                await trio.sleep(1)
        assert {member.process: member.standing for member in machine.view().members}[silent] is MemberState.SILENT
        machine.vault.close(first)
        assert (machine.order(asks), machine.order(silent)) == ("serve", "standby")
        await machine.failover.follow(1, silent, None, 0)
        assert {member.process: member.standing for member in machine.view().members}[silent] is MemberState.READY


async def test_who_waits_for_an_answer_is_not_silent(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        standby = await machine.member("b")
        serial = machine.told(standby).serial
        assert (await machine.failover.follow(1, standby, serial, 100)).serial == serial
        assert machine.view().members[1].standing is MemberState.READY


async def test_who_writes_without_the_service_is_waited_for_and_never_ended(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        other = machine.process("a")
        machine.vault.open_to_write(other)
        standby = await machine.member("b")
        assert (machine.order(standby), machine.view().writer) == ("standby", other)
        await trio.sleep(9)
        assert machine.ended == []
        machine.vault.close(other)
        assert machine.order(standby) == "serve"


async def test_a_service_goes_with_its_last_process_unless_somebody_asked_for_something(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.die(process := await machine.serves("a"))
        machine.vault.fenced(process)
        assert machine.view().members == ()
        await trio.sleep(61)  # so long its promotion counts
        assert machine.failover.services() == []
        machine.failover.change(1, ServiceSettings(standbys=2))
        await machine.die(process := await machine.serves("a"))
        machine.vault.fenced(process)
        await trio.sleep(61)
        assert machine.view().settings.standbys == 2
        machine.vault.made.pop(1)
        machine.vault.become("removed", machine.coordinator.records[1].arena)
        assert machine.failover.services() == []


async def test_two_in_one_domain_are_said_loudly(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second = await machine.member("a")
        why = f"pid {first.pid}, {second.pid} share domain a"
        assert [facts["why"] for facts in machine.topics("unprotected")] == [why]
        view = machine.view()
        assert (view.protection, [member.is_apart for member in view.members]) == (why, [False, False])
        await machine.member("b")
        assert machine.view().protection == ""


async def test_where_a_service_is_nobody_opens_to_write(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        assert not machine.registry.is_served(1)
        await machine.member("a", is_ready=False)
        assert machine.registry.is_served(1)


async def test_a_view_is_told_when_it_has_changed(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        before = machine.view()
        machine.vault.become("committed", machine.vault.made[1])
        assert machine.view().revision == before.revision
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(machine.die, first)
                after = await machine.failover.get(1, before.revision, 60)
        assert after.revision > before.revision
        assert (await machine.failover.get(1, after.revision, 1)).revision == after.revision
