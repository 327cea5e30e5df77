"""The active, the order that each member gets, and the receivers of events about it."""

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, MemberState, Order, Phase, ServiceSettings


async def test_the_first_that_is_ready_serves(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.member("a", is_ready=False)
        assert (room.order(first), room.phase) == ("standby", Phase.IDLE)
        told = room.failover.ready(1, first)
        assert (told.order, told.generation, told.writer) == (Order.SERVE, 1, first)
        assert room.phase is Phase.PROMOTING
        room.serving(first)
        view = room.view()
        assert (view.phase, view.writer, view.generation, view.promotions) == (Phase.SERVING, first, 1, 1)
        last = view.last
        assert (last.cause, last.from_pid, last.to_pid, last.fence_ms) == (Cause.FIRST, None, first.pid, None)
        assert view.protection == "it has no standby"


async def test_whoever_ended_is_followed_by_the_next_once_it_is_fenced(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        later, next_ = await room.member("c", 2), await room.member("b", 1)
        await room.die(first)
        assert (room.phase, room.order(next_), set(room.vault.hurried)) == (Phase.FENCING, "standby", {first})
        await trio.sleep(0.2)
        room.vault.fenced(first)
        assert (room.order(next_), room.order(later), room.told(next_).generation) == ("serve", "standby", 2)
        await trio.sleep(0.003)
        room.serving(next_)
        last = room.view().last
        assert (last.cause, last.from_pid, last.to_pid) == (Cause.ENDED, first.pid, next_.pid)
        assert (last.fence_ms, last.promote_ms) == (pytest.approx(200), pytest.approx(3))
        assert [facts["cause"] for facts in room.topics("promoted")] == ["first", "ended"]


async def test_who_waits_is_answered_when_something_is_new(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        standby = await room.member("b")
        told = room.told(standby)
        answers = []

        async def follow() -> None:
            answers.append(await room.failover.follow(1, standby, told.serial, 60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            room.vault.close(first)
        [answer] = answers
        assert (answer.order, answer.generation) == (Order.SERVE, 2)
        assert answer.serial > told.serial
        again = await room.failover.follow(1, standby, answer.serial, 0.5)
        assert again == answer


async def test_who_is_to_serve_is_answered_before_all_else(room, autojump_clock: MockClock):
    """In the call that fences the old active, once that is stored and before any other notification; others in turn."""
    async with room.mpsd():
        first, standby, other = await room.serves("a"), await room.member("b"), await room.member("c", 1)
        at_once, answers = [], []

        async def follow(process: ProcessId) -> None:
            serial = room.told(process).serial
            answers.append(await room.failover.follow(1, process, serial, 60, at_once.append))

        room.vault.told = lambda what, arena: told.append((what, len(at_once))) or room.desk.heard_of(what, arena)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, standby)
            nursery.start_soon(follow, other)
            await trio.testing.wait_all_tasks_blocked()
            told: list[tuple[str, int]] = []
            room.vault.close(first)
            assert [(each.order, each.generation) for each in at_once] == [(Order.SERVE, 2)]
            assert (room.vault.made[1].writer, told) == (standby, [("closed", 0), ("opened", 1)])
            assert answers == []
        assert sorted(each.order for each in answers) == [Order.SERVE, Order.STANDBY]
        assert at_once[0] in answers
        assert not any(seat.asking for seat in room.desk.entries[1].seats.values())


async def test_who_knows_more_already_is_not_answered_at_once(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, standby = await room.serves("a"), await room.member("b")
        at_once: list[object] = []
        async with trio.open_nursery() as nursery:
            serial = room.told(standby).serial + 1000
            nursery.start_soon(room.failover.follow, 1, standby, serial, 0.5, at_once.append)
            await trio.testing.wait_all_tasks_blocked()
            room.vault.close(first)
        assert (room.order(standby), at_once) == ("serve", [])


async def test_everybody_is_told_of_a_commit(room, autojump_clock: MockClock):
    """A standby maps what was committed before it takes over."""
    async with room.mpsd():
        first, standby = await room.serves("a"), await room.member("b")
        arena = replace(room.vault.made[1], commit=5, layout_hash="abc", state_serial=3)
        room.vault.become("committed", arena)
        for each in (first, standby):
            told = await room.failover.follow(1, each, room.told(each).serial - 1, 10)
            assert (told.commit, told.layout_hash, told.state_serial) == (5, "abc", 3)


async def test_a_handover_makes_a_standby_of_the_one_that_served(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b"), await room.member("c")
        done = []

        async def hand_over() -> None:
            done.append(await room.failover.handover(1, third.pid, 30))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hand_over)
            await trio.testing.wait_all_tasks_blocked()
            assert (room.order(first), room.phase) == ("yield", Phase.YIELDING)
            await trio.sleep(0.5)
            told = room.failover.yielded(1, 1, first)
            assert told.order is Order.STANDBY
            assert (room.order(third), room.order(second)) == ("serve", "standby")
            room.serving(third)
            assert room.failover.yielded(1, 1, first).order is Order.STANDBY  # it did not get the answer
        assert (done[0].from_pid, done[0].to_pid, done[0].seconds) == (first.pid, third.pid, pytest.approx(0.5, abs=0.01))
        assert room.view().last.cause is Cause.ASKED
        standings = {member.process: member.standing for member in room.view().members}
        assert standings == {first: MemberState.WARMING, second: MemberState.READY, third: MemberState.READY}


async def test_what_befalls_others_in_a_handover_is_not_why_it_was(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b"), await room.member("c")
        with trio.move_on_after(0):
            await room.failover.handover(1, second.pid, 0)
        await room.die(third)
        room.failover.yielded(1, 1, first)
        room.serving(second)
        assert (room.view().last.cause, room.view().last.from_pid) == (Cause.ASKED, first.pid)


async def test_a_handover_that_cannot_be_is_refused(room, autojump_clock: MockClock):
    async with room.mpsd():
        with pytest.raises(NoSuchArena):
            await room.failover.handover(1, None, 1)
        await room.serves("a")
        with pytest.raises(ArenaBusy, match="no standby is ready"):
            await room.failover.handover(1, None, 1)
        with pytest.raises(BadRequest, match="pid 4711 is not a member"):
            await room.failover.handover(1, 4711, 1)
        warming = await room.member("b", is_ready=False)
        with pytest.raises(ArenaBusy, match="is not a ready standby"):
            await room.failover.handover(1, warming.pid, 1)


async def test_a_handover_to_one_that_ends_meanwhile_fails_and_the_one_that_serves_goes_on(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second = await room.member("b")
        async with trio.open_nursery() as nursery:

            async def hand_over() -> None:
                with pytest.raises(ArenaBusy, match="continues"):
                    await room.failover.handover(1, None, 30)

            nursery.start_soon(hand_over)
            await trio.testing.wait_all_tasks_blocked()
            await room.die(second)
        assert (room.order(first), room.phase) == ("serve", Phase.SERVING)
        assert trio.current_time() == pytest.approx(4, abs=0.1)


async def test_a_handover_that_is_not_over_in_time_says_so(room, autojump_clock: MockClock):
    async with room.mpsd():
        await room.serves("a")
        await room.member("b")
        with pytest.raises(ArenaBusy, match="not handed over yet: it is yielding"):
            await room.failover.handover(1, None, 1)


async def test_who_does_not_take_over_in_time_is_ended_and_the_next_one_promoted(room, autojump_clock: MockClock):
    async with room.mpsd():
        slow = await room.member("a")
        next_ = await room.member("b")
        assert room.order(slow) == "serve"
        await trio.sleep(4.01)
        assert room.order(slow) == "leave"
        await trio.sleep(1.1)  # it may let go by itself
        assert room.ended == [slow]
        room.vault.fenced(slow)
        assert room.order(next_) == "serve"
        room.serving(next_)
        assert room.view().last.cause is Cause.FAILED


async def test_who_says_that_it_failed_leaves(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b"), await room.member("c")
        room.failover.failed(1, second, "no memory")
        assert (room.told(second).order, room.told(second).why) == (Order.LEAVE, "it reported that it failed: no memory")
        room.failover.failed(1, first, "an assertion")
        assert (room.order(first), room.phase) == ("leave", Phase.FENCING)
        room.vault.close(first)  # as ordered
        assert (room.order(third), room.ended) == ("serve", [])


async def test_a_writer_that_leaves_has_stopped(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second = await room.member("b")
        room.failover.leave(1, first)
        assert room.order(second) == "serve"
        with pytest.raises(NotAllowed):
            await room.failover.follow(1, first, None, 0)


async def test_a_promotion_that_the_vault_refuses_is_that_members_last(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second, third = await room.member("b"), await room.member("c")
        room.vault.refusal = NotAllowed("it has it not open")
        room.vault.close(first)
        assert (room.order(second), room.order(third)) == ("leave", "serve")
        assert "it has it not open" in room.told(second).why


async def test_while_nobody_serves_its_protection_says_why(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.member("a", is_ready=False)
        assert room.view().protection == "no member serves: no standby is ready"
        room.failover.ready(1, first)
        assert room.view().protection == f"no member serves: pid {first.pid} is taking over"
        room.serving(first)
        second = await room.member("b")
        assert room.view().protection == ""
        await room.die(first)
        assert room.view().protection == f"no member serves: pid {first.pid} is being fenced"
        room.vault.fenced(first)
        room.serving(second)
        assert room.view().protection == "it has no standby"


async def test_what_one_says_of_another_term_counts_for_nothing(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.member("a")
        second = await room.member("b")
        for generation, process in ((0, first), (2, first), (1, second)):
            with pytest.raises(StaleGeneration):
                room.failover.serving(1, generation, process)
        for generation, process in ((0, first), (2, first), (2, second)):
            with pytest.raises(StaleGeneration):
                room.failover.yielded(1, generation, process)
        assert room.failover.yielded(1, 1, second).order == "standby"
        assert room.phase is Phase.PROMOTING


async def test_only_who_has_joined_is_told_something(room, autojump_clock: MockClock):
    async with room.mpsd():
        stranger = room.process("a")
        with pytest.raises(NotAllowed, match="not open"):
            await room.failover.join(1, stranger, 0, 0)
        room.vault.open(stranger)
        for ask in (room.failover.ready, room.failover.leave):
            with pytest.raises(NotAllowed, match="has not joined"):
                ask(1, stranger)
        with pytest.raises(NotAllowed):
            await room.failover.follow(1, stranger, None, 0)
        assert room.failover.services() == []


async def test_nobody_joins_where_nobody_can_write(room, autojump_clock: MockClock):
    async with room.mpsd():
        process = room.process("a")
        room.vault.open(process)
        room.vault.made[1] = replace(room.vault.made[1], is_sealed=True)
        with pytest.raises(ArenaSealed):
            await room.failover.join(1, process, 0, 0)


async def test_a_member_that_joins_again_is_the_member_that_it_was(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        again = await room.failover.join(1, first, 0, 0)
        assert again == room.told(first)
        assert len(room.view().members) == 1


async def test_who_does_not_ask_any_more_is_passed_over_until_it_does(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        silent, asks = await room.member("b", 0), await room.member("c", 1)
        with trio.move_on_after(10.1):
            while True:
                await room.failover.follow(1, asks, 0, 1)
                await trio.sleep(1)
        assert {member.process: member.standing for member in room.view().members}[silent] is MemberState.SILENT
        room.vault.close(first)
        assert (room.order(asks), room.order(silent)) == ("serve", "standby")
        await room.failover.follow(1, silent, None, 0)
        assert {member.process: member.standing for member in room.view().members}[silent] is MemberState.READY


async def test_who_waits_for_an_answer_is_not_silent(room, autojump_clock: MockClock):
    async with room.mpsd():
        await room.serves("a")
        standby = await room.member("b")
        serial = room.told(standby).serial
        assert (await room.failover.follow(1, standby, serial, 100)).serial == serial
        assert room.view().members[1].standing is MemberState.READY


async def test_who_writes_without_the_service_is_waited_for_and_never_ended(room, autojump_clock: MockClock):
    async with room.mpsd():
        other = room.process("a")
        room.vault.open_to_write(other)
        standby = await room.member("b")
        assert (room.order(standby), room.view().writer) == ("standby", other)
        await trio.sleep(9)
        assert room.ended == []
        room.vault.close(other)
        assert room.order(standby) == "serve"


async def test_a_service_goes_with_its_last_process_unless_somebody_asked_for_something(room, autojump_clock: MockClock):
    async with room.mpsd():
        await room.die(process := await room.serves("a"))
        room.vault.fenced(process)
        assert room.view().members == ()
        await trio.sleep(61)  # so long its promotion counts
        assert room.failover.services() == []
        room.failover.change(1, ServiceSettings(standbys=2))
        await room.die(process := await room.serves("a"))
        room.vault.fenced(process)
        await trio.sleep(61)
        assert room.view().settings.standbys == 2
        room.vault.made.pop(1)
        room.vault.become("removed", room.desk.entries[1].arena)
        assert room.failover.services() == []


async def test_two_in_one_domain_are_said_loudly(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        second = await room.member("a")
        why = f"pid {first.pid}, {second.pid} share domain a"
        assert [facts["why"] for facts in room.topics("unprotected")] == [why]
        view = room.view()
        assert (view.protection, [member.is_apart for member in view.members]) == (why, [False, False])
        await room.member("b")
        assert room.view().protection == ""


async def test_where_a_service_is_nobody_opens_to_write(room, autojump_clock: MockClock):
    async with room.mpsd():
        assert not room.desk.is_served(1)
        await room.member("a", is_ready=False)
        assert room.desk.is_served(1)


async def test_a_view_is_told_when_it_has_changed(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        before = room.view()
        room.vault.become("committed", room.vault.made[1])
        assert room.view().revision == before.revision
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(room.die, first)
                after = await room.failover.get(1, before.revision, 60)
        assert after.revision > before.revision
        assert (await room.failover.get(1, after.revision, 1)).revision == after.revision
