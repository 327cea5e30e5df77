"""The vault loses what a service has come to, and gets it again from the one that serves; or that is lost too."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import ArenaBusy
from mpsd.model.service import Order, Phase

NOT_AGAIN = "the vault has lost the arena's memory and forward state, and pid 100 has not given it again"


def keep(machine) -> None:
    arena = machine.vault.made[1]
    kept = replace(arena, commit=arena.commit + 1, layout_hash="abc", allocations=3, state_serial=arena.commit + 1)
    machine.vault.become("committed", kept)


def lose(machine) -> None:
    arena = machine.vault.made[1]
    facts = {"generation": arena.generation + 1, "commit": arena.commit + 1}
    machine.vault.become("lost", replace(arena, **facts, layout_hash="", allocations=0, state_serial=0))


async def test_who_serves_goes_on_and_nobody_follows_until_it_has_given_all_again(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby = await machine.serves("a"), await machine.member("b")
        keep(machine)
        assert machine.view().protection == ""
        lose(machine)
        assert (machine.phase, machine.view().protection) == (Phase.SERVING, NOT_AGAIN)
        assert machine.topics("unprotected")[-1]["why"] == NOT_AGAIN
        assert (machine.order(first), machine.told(first).generation, machine.order(standby)) == ("serve", 2, "standby")
        with pytest.raises(ArenaBusy, match="has not given it again"):
            await machine.failover.handover(1, None, 0)
        keep(machine)
        assert (machine.view().protection, machine.phase) == ("", Phase.SERVING)
        with trio.move_on_after(0):
            await machine.failover.handover(1, None, 0)
        assert machine.order(first) == "yield"


async def test_a_handover_is_taken_back_where_it_would_lose_all(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, _ = await machine.serves("a"), await machine.member("b")
        keep(machine)
        with trio.move_on_after(0):
            await machine.failover.handover(1, None, 0)
        assert machine.order(first) == "yield"
        lose(machine)
        assert (machine.order(first), machine.told(first).generation, machine.phase) == ("serve", 2, Phase.SERVING)
        assert machine.topics("kept")


async def test_who_is_silent_with_what_was_lost_is_left_alone(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, _ = await machine.serves("a", heartbeat=0.4), await machine.member("b")
        keep(machine)
        lose(machine)
        await trio.sleep(20)
        assert (machine.order(first), machine.ended) == ("serve", [])


async def test_another_mpsd_knows_it_too(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        keep(machine)
    lose(machine)
    async with machine.mpsd():
        told = await machine.failover.join(1, first, 0, 0.0)
        assert (told.order, told.generation, machine.view().protection) == (Order.SERVE, 2, NOT_AGAIN)


async def test_what_was_lost_with_who_served_is_begun_anew_and_that_is_said(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby = await machine.serves("a"), await machine.member("b")
        keep(machine)
        lose(machine)
        await machine.die(first)
        assert machine.order(standby) == "standby"
        machine.vault.fenced(first)
        told = machine.told(standby)
        assert (told.order, told.generation, told.layout_hash, told.state_serial) == (Order.SERVE, 3, "", 0)
        assert machine.topics("unprotected")[-1]["why"].endswith("and pid 101 begins without them")
        [said] = machine.topics("lost")
        assert said["why"] == "the vault's keeper died, and pid 100, which served, stopped before it had given the memory " \
            "and the forward state again"
        assert (said["pid"], said["generation"], said["losses"]) == (101, 3, 1)
        lost = machine.view().lost
        assert lost is not None
        assert (lost.pid, lost.generation, lost.why, machine.view().losses) == (101, 3, said["why"], 1)


async def test_one_loss_is_counted_once_however_many_fail_to_begin_anew(machine, autojump_clock: MockClock):
    """And the next one is another: what was kept since is lost again.  The count stays when others serve."""
    async with machine.mpsd():
        first, second, third = await machine.serves("a"), await machine.member("b"), await machine.member("c")
        keep(machine)
        lose(machine)
        await machine.die(first)
        machine.vault.fenced(first)
        assert (machine.order(second), machine.view().losses) == ("serve", 1)
        await machine.die(second)
        machine.vault.fenced(second)
        assert (machine.order(third), machine.view().losses) == ("serve", 1)
        keep(machine)
        fourth = await machine.member("d")
        machine.serving(third)
        lose(machine)
        await machine.die(third)
        machine.vault.fenced(third)
        assert (machine.order(fourth), machine.view().losses) == ("serve", 2)


async def test_nothing_is_lost_where_the_keeper_alone_dies_or_nothing_was_kept(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, standby = await machine.serves("a"), await machine.member("b")
        await machine.die(first)
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"
        machine.serving(standby)
        keep(machine)
        lose(machine)
        keep(machine)
        assert (machine.view().losses, machine.view().lost, machine.topics("lost")) == (0, None, [])


async def test_an_end_is_awaited_by_a_member_that_finds_nothing_to_adopt(machine, autojump_clock: MockClock):
    """It cannot be ready before the dead active is fenced, so that mpsd must not hold that one's work for others meanwhile."""
    async with machine.mpsd():
        first = await machine.serves("a")
        keep(machine)
        standby = await machine.member("b", is_ready=False)
        await machine.die(first)
        assert machine.vault.hurried == [], "there is something to adopt, and the standby is not ready"
        lose(machine)
        assert (set(machine.vault.hurried), machine.order(standby)) == ({first}, "standby")
