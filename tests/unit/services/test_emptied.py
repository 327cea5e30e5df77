"""The vault loses what a service has come to, and gets it again from the one that serves; or that is lost too."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import ArenaBusy
from mpsd.model.service import Order, Phase

NOT_AGAIN = "the vault has lost the arena's memory and forward state, and pid 100 has not given it again"


def keep(room) -> None:
    arena = room.vault.made[1]
    kept = replace(arena, commit=arena.commit + 1, layout_hash="abc", allocations=3, state_serial=arena.commit + 1)
    room.vault.become("committed", kept)


def lose(room) -> None:
    arena = room.vault.made[1]
    facts = {"generation": arena.generation + 1, "commit": arena.commit + 1}
    room.vault.become("lost", replace(arena, **facts, layout_hash="", allocations=0, state_serial=0))


async def test_who_serves_goes_on_and_nobody_follows_until_it_has_given_all_again(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, standby = await room.serves("a"), await room.member("b")
        keep(room)
        assert room.view().protection == ""
        lose(room)
        assert (room.phase, room.view().protection) == (Phase.SERVING, NOT_AGAIN)
        assert room.topics("unprotected")[-1]["why"] == NOT_AGAIN
        assert (room.order(first), room.told(first).generation, room.order(standby)) == ("serve", 2, "standby")
        with pytest.raises(ArenaBusy, match="has not given it again"):
            await room.failover.handover(1, None, 0)
        keep(room)
        assert (room.view().protection, room.phase) == ("", Phase.SERVING)
        with trio.move_on_after(0):
            await room.failover.handover(1, None, 0)
        assert room.order(first) == "yield"


async def test_a_handover_is_taken_back_where_it_would_lose_all(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, _ = await room.serves("a"), await room.member("b")
        keep(room)
        with trio.move_on_after(0):
            await room.failover.handover(1, None, 0)
        assert room.order(first) == "yield"
        lose(room)
        assert (room.order(first), room.told(first).generation, room.phase) == ("serve", 2, Phase.SERVING)
        assert room.topics("kept")


async def test_who_is_silent_with_what_was_lost_is_left_alone(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, _ = await room.serves("a", heartbeat=0.4), await room.member("b")
        keep(room)
        lose(room)
        await trio.sleep(20)
        assert (room.order(first), room.ended) == ("serve", [])


async def test_another_mpsd_knows_it_too(room, autojump_clock: MockClock):
    async with room.mpsd():
        first = await room.serves("a")
        keep(room)
    lose(room)
    async with room.mpsd():
        told = await room.failover.join(1, first, 0, 0.0)
        assert (told.order, told.generation, room.view().protection) == (Order.SERVE, 2, NOT_AGAIN)


async def test_what_was_lost_with_who_served_is_begun_anew_and_that_is_said(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, standby = await room.serves("a"), await room.member("b")
        keep(room)
        lose(room)
        await room.die(first)
        assert room.order(standby) == "standby"
        room.vault.fenced(first)
        told = room.told(standby)
        assert (told.order, told.generation, told.layout_hash, told.state_serial) == (Order.SERVE, 3, "", 0)
        assert room.topics("unprotected")[-1]["why"].endswith("and pid 101 begins anew")
        [said] = room.topics("lost")
        assert said["why"] == "the vault's keeper died, and pid 100, which served, stopped before it had given the memory " \
            "and the forward state again"
        assert (said["pid"], said["generation"], said["losses"]) == (101, 3, 1)
        lost = room.view().lost
        assert lost is not None
        assert (lost.pid, lost.generation, lost.why, room.view().losses) == (101, 3, said["why"], 1)


async def test_one_loss_is_counted_once_however_many_fail_to_begin_anew(room, autojump_clock: MockClock):
    """And the next one is another: what was kept since is lost again.  The count stays when others serve."""
    async with room.mpsd():
        first, second, third = await room.serves("a"), await room.member("b"), await room.member("c")
        keep(room)
        lose(room)
        await room.die(first)
        room.vault.fenced(first)
        assert (room.order(second), room.view().losses) == ("serve", 1)
        await room.die(second)
        room.vault.fenced(second)
        assert (room.order(third), room.view().losses) == ("serve", 1)
        keep(room)
        fourth = await room.member("d")
        room.serving(third)
        lose(room)
        await room.die(third)
        room.vault.fenced(third)
        assert (room.order(fourth), room.view().losses) == ("serve", 2)


async def test_nothing_is_lost_where_the_keeper_alone_dies_or_nothing_was_kept(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, standby = await room.serves("a"), await room.member("b")
        await room.die(first)
        room.vault.fenced(first)
        assert room.order(standby) == "serve"
        room.serving(standby)
        keep(room)
        lose(room)
        keep(room)
        assert (room.view().losses, room.view().lost, room.topics("lost")) == (0, None, [])
