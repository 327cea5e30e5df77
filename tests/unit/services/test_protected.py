"""Whether a standby is ready to take over, for sources that then look for faults more often."""

import pytest

from mpsd.model.service import Order


@pytest.fixture
def told(room) -> list[bool]:
    """Return the reported values, where they changed."""
    return []


def follow(room, told: list[bool]) -> None:
    def note(is_any: bool) -> None:
        if told[-1:] != [is_any]:
            told.append(is_any)

    room.desk.protected.subscribe(note)


async def test_a_standby_that_is_ready_protects_until_it_has_taken_over(room, told, autojump_clock):
    async with room.mpsd():
        follow(room, told)
        active = await room.serves("a")
        late = await room.member("b", is_ready=False)
        assert told == [False]
        room.failover.ready(1, late)
        assert told == [False, True]
        room.tear_down("a")
        room.xid(43, "a")
        assert room.order(late) == Order.SERVE
        assert told == [False, True, False]
        await room.die(active)
        room.serving(late)
        await room.member("c")
        assert told[-1]


async def test_while_one_is_fenced_the_next_fault_that_proves_it_is_waited_for(room, told, autojump_clock):
    async with room.mpsd():
        follow(room, told)
        active = await room.serves("a")
        await room.member("b")
        room.failover.failed(1, active, "it cannot go on")
        assert room.phase == "fencing"
        assert told == [False, True]


async def test_a_standby_that_ends_or_shares_the_domain_protects_from_no_fault(room, told, autojump_clock):
    async with room.mpsd():
        follow(room, told)
        await room.serves("a")
        beside = await room.member("a")
        assert told == [False]
        apart = await room.member("b")
        assert told == [False, True]
        await room.die(apart)
        assert told == [False, True, False]
        await room.die(beside)
        assert told == [False, True, False]


async def test_where_there_is_no_service_nobody_is_protected(room, told, autojump_clock):
    async with room.mpsd():
        follow(room, told)
        active = await room.serves("a")
        await room.member("b")
        assert told == [False, True]
        room.desk.heard_of("removed", room.vault.made[1])
        assert told == [False, True, False]
        assert not room.desk.entries
        assert active in room.processes
