"""Promotion: a reader becomes the writer, and nothing of the one before counts.  Deaths on the way: test_crashes.py."""

import os
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpsd_client import State
from msgspec.structs import replace

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, MpsdError, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.model.arena import GRANULE, Access, Arena
from mpsd.model.process import ProcessId
from mpsd.vault.lifecycle import Vault
from tests.unit.vault.machine import SPEC, STRANGER, a_process, at, committed, memory, opened, put, taken, until

SECONDS = 10.0


async def with_standby(vault: Vault, writer: ProcessId, standby: ProcessId) -> Arena:
    """Committed 0; 1 is put and 0 is dropped since."""
    arena = await committed(vault, writer)
    await put(vault, arena, writer, 1)
    await vault.arenas.drop(arena.id, 1, writer, [0])
    return await vault.arenas.open(arena.id, Access.READ, standby, 0)


def facts(vault: Vault) -> tuple[object, ...]:
    arena = vault.arenas.find("model")
    return arena.generation, arena.writer, arena.readers, arena.used_bytes, arena.allocations


async def test_a_reader_is_promoted_to_the_last_commit(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        arena = vault.arenas.promote(arena.id, other.process, writer.process)
        assert facts(vault) == (2, other.process, (), GRANULE, 1)
        assert await taken(vault, arena, other.process) == {0: b"0"}
        await put(vault, arena, other.process, 1)
        assert (await vault.arenas.commit(arena.id, 2, other.process, None)).allocations == 2
        assert [each["access"] for each in machine.topics("arena.opened")] == ["write", "read"]
        vault.arenas.tell_promoted(arena)
        assert machine.topics("arena.opened")[-1]["access"] == "write"
        assert vault.catalog.account.used_bytes[SPEC.gpu] == 2 * GRANULE
    async with machine.vault() as vault:
        assert facts(vault) == (2, other.process, (), 2 * GRANULE, 2)


async def test_other_readers_stay(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        with a_process() as third:
            await vault.arenas.open(arena.id, Access.READ, third.process, 0)
            vault.arenas.promote(arena.id, other.process, writer.process)
            assert vault.arenas.find("model").readers == (third.process,)
            await vault.arenas.close(arena.id, third.process)
        assert vault.arenas.find("model").unheld_since is None


async def test_nobody_is_promoted_beside_a_writer_that_is_not_fenced(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        before = facts(vault)
        for fenced in (None, other.process):
            with pytest.raises(ArenaBusy, match=f"pid {writer.process.pid} writes it"):
                vault.arenas.promote(arena.id, other.process, fenced)
        assert facts(vault) == before


async def test_who_cannot_be_promoted(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        with pytest.raises(NoSuchArena):
            vault.arenas.promote(7, other.process, writer.process)
        with a_process() as third, pytest.raises(NotAllowed, match="not open"):
            vault.arenas.promote(arena.id, third.process, writer.process)
        machine.holding.hold(other.process)
        other.end()
        with pytest.raises(BadRequest, match="has ended"):
            vault.arenas.promote(arena.id, other.process, writer.process)
        await vault.arenas.seal(arena.id, 1, writer.process)
        with pytest.raises(ArenaSealed):
            vault.arenas.promote(arena.id, writer.process, None)
        machine.holding.held[other.process].set()


async def test_the_writer_itself_begins_another_term(machine, writer):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await put(vault, arena, writer.process, 1)
        vault.arenas.promote(arena.id, writer.process, writer.process)
        assert facts(vault) == (2, writer.process, (), GRANULE, 1)
        with pytest.raises(StaleGeneration):
            await put(vault, arena, writer.process, 1)


async def test_a_promoted_writer_is_waited_for_like_any_other(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        vault.arenas.promote(arena.id, other.process, writer.process)
        other.kill()
        with a_process() as third:
            assert (await vault.arenas.open(arena.id, Access.WRITE, third.process, SECONDS)).generation == 3


# -- the one before ----------------------------------------------------------------------------------------------------

async def keep_state(vault: Vault, arena: Arena, old: ProcessId) -> object:
    with State.create({"step": "uint64"}, generation=1) as state:
        return await vault.arenas.keep_state(arena.id, 1, old, os.dup(state.fd))


async def step_down(vault: Vault, arena: Arena, old: ProcessId) -> object:
    return vault.arenas.step_down(arena.id, 1, old)


Ask = Callable[[Vault, Arena, ProcessId], Awaitable[object]]
ASKS: dict[str, Ask] = {
    "put": lambda vault, arena, old: put(vault, arena, old, 4),
    "put with the new generation": lambda vault, arena, old: vault.arenas.put(arena.id, 2, old, at(4), [memory()]),
    "drop": lambda vault, arena, old: vault.arenas.drop(arena.id, 1, old, [0]),
    "commit": lambda vault, arena, old: vault.arenas.commit(arena.id, 1, old, memory(b"layout")),
    "seal": lambda vault, arena, old: vault.arenas.seal(arena.id, 1, old),
    "keep a state": keep_state,
    "take": lambda vault, arena, old: vault.arenas.take(arena.id, old, None, 1),
    "layout": lambda vault, arena, old: vault.arenas.layout(arena.id, old),
    "close": lambda vault, arena, old: vault.arenas.close(arena.id, old),
    "step down": step_down,
    "open to read": lambda vault, arena, old: vault.arenas.open(arena.id, Access.READ, old, 0),
    "open to write": lambda vault, arena, old: vault.arenas.open(arena.id, Access.WRITE, old, 0),
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asks=st.lists(st.sampled_from(sorted(ASKS)), min_size=1, max_size=6), when=st.integers(0, 5))
def test_no_request_of_a_fenced_process_changes_anything(machine, asks, when):
    """For any request, in any order, before and after the promotion."""

    async def fence() -> None:
        with a_process() as old, a_process() as new:
            async with machine.vault() as vault:
                arena = await with_standby(vault, old.process, new.process)
                for ask in asks[:when]:
                    await refused_or_done(ASKS[ask](vault, arena, old.process))
                if (now := vault.arenas.find("model")).is_sealed:
                    await clear(vault, old.process, new.process)
                    return
                vault.arenas.promote(arena.id, new.process, old.process)
                before, held = vault.arenas.find("model"), await taken(vault, arena, new.process)
                assert (before.generation, before.writer, before.readers) == (now.generation + 1, new.process, ())
                for ask in (*asks[when:], *ASKS):
                    assert await refused_or_done(ASKS[ask](vault, arena, old.process)), ask
                    assert (vault.arenas.find("model"), await taken(vault, arena, new.process)) == (before, held)
                await clear(vault, new.process)

    trio.run(fence)


async def refused_or_done(asked: Awaitable[object]) -> bool:
    try:
        await asked
    except MpsdError:
        return True
    return False


async def clear(vault: Vault, *processes: ProcessId) -> None:
    arena = vault.arenas.find("model")
    for process in processes:
        if process in (arena.writer, *arena.readers):
            await vault.arenas.close(arena.id, process)
    await vault.arenas.remove(arena.id)


async def test_a_fenced_process_that_lives_opens_nothing_until_it_is_gone(machine, writer, other):
    """Also when no process writes any more; and earlier requests do not help it."""
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        vault.arenas.promote(arena.id, other.process, writer.process)
        await vault.arenas.close(arena.id, other.process)
        for access in Access:
            with pytest.raises(NotAllowed, match="was fenced"):
                await vault.arenas.open(arena.id, access, writer.process, 0)
        assert vault.arenas.find("model").generation == 2
        writer.kill()
        await until(lambda: vault.holders.count == 0)
        assert machine.topics("arena.fenced") == []  # it held nothing any more


@pytest.mark.parametrize("name", ["put", "commit", "keep a state"])
async def test_what_the_one_before_has_under_way_comes_to_nothing(machine, writer, other, monkeypatch, name):
    """The promotion does not wait for it: the keeper may be slow."""
    async with machine.vault() as vault, trio.open_nursery() as nursery:
        arena = await with_standby(vault, writer.process, other.process)
        begun, slow = trio.Event(), trio.Event()
        keep = vault.keeper.put

        async def keep_slowly(*what: object) -> None:
            begun.set()
            await slow.wait()
            await keep(*what)

        async def ask() -> None:
            with pytest.raises(StaleGeneration):
                await ASKS[name](vault, arena, writer.process)

        monkeypatch.setattr(vault.keeper, "put", keep_slowly)
        nursery.start_soon(ask)
        await begun.wait()
        vault.arenas.promote(arena.id, other.process, writer.process)
        assert facts(vault) == (2, other.process, (), GRANULE, 1)
        slow.set()
        while nursery.child_tasks:
            await trio.lowlevel.checkpoint()
        await vault.reclaimer.settled(arena)
        assert facts(vault) == (2, other.process, (), GRANULE, 1)
        account = vault.catalog.account
        assert (account.used_bytes[SPEC.gpu], account.allocations) == (GRANULE, 1)
        assert await vault.keeper.names() == vault.catalog.find("model").names()


# -- handing over ------------------------------------------------------------------------------------------------------


async def test_a_writer_that_steps_down_is_a_reader_of_the_last_commit(machine, writer, other):
    async with machine.vault() as vault:
        arena = await with_standby(vault, writer.process, other.process)
        for _ in range(2):  # it may ask once more
            vault.arenas.step_down(arena.id, 1, writer.process)
            assert facts(vault) == (1, None, (other.process, writer.process), GRANULE, 1)
        vault.arenas.promote(arena.id, other.process, None)
        assert facts(vault) == (2, other.process, (writer.process,), GRANULE, 1)
        with pytest.raises(StaleGeneration):
            vault.arenas.step_down(arena.id, 1, writer.process)
        vault.arenas.step_down(arena.id, 2, other.process)
        assert vault.arenas.promote(arena.id, writer.process, None).generation == 3


async def test_who_opens_to_write_does_not_slip_in_where_a_service_is(machine, writer, other):
    served: set[int] = set()
    machine.is_served = served.__contains__
    async with machine.vault() as vault, trio.open_nursery() as nursery:
        arena = await opened(vault, writer.process)
        refusals = []

        async def wait() -> None:
            with pytest.raises(ArenaBusy, match="service model has it: its members are promoted by mpsd"):
                await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
            refusals.append(other.process)

        nursery.start_soon(wait)
        await until(lambda: len(vault.catalog.find("model").queue) == 1)
        served.add(arena.id)
        assert await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0) == arena  # it is the writer still
        vault.arenas.step_down(arena.id, 1, writer.process)
        await until(lambda: bool(refusals))
        with pytest.raises(ArenaBusy, match="service model"):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
        served.clear()
        assert (await vault.arenas.open(arena.id, Access.WRITE, other.process, 0)).generation == 2


# -- receivers of events -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends_first", [True, False])
async def test_who_is_hurried_is_let_go_when_it_has_ended(machine, writer, ends_first):
    """With any vault.fence, and whether or not it has ended already."""
    machine.holding.hold(writer.process)
    async with machine.vault() as vault:
        await opened(vault, writer.process)
        if ends_first:
            writer.kill()
            await until(lambda: vault.holders.has_ended(writer.process))
        vault.arenas.hurry(writer.process)
        if not ends_first:
            assert machine.holding.released == []
            writer.kill()
        await until(lambda: machine.holding.released == [writer.process])
        machine.holding.held[writer.process].set()
        await until(lambda: vault.holders.count == 0)


async def test_the_daemon_is_told_of_all_that_happens_to_an_arena(machine, writer, other):
    async with machine.vault() as vault:
        told: list[tuple[object, ...]] = []
        vault.arenas.changed.subscribe(lambda what, arena: told.append((what, arena.writer, arena.readers)))
        arena = await committed(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        other.kill()
        await until(lambda: ("fenced", writer.process, ()) in told)
        writer.kill()
        await until(lambda: ("fenced", None, ()) in told)
        assert [what for what, *_ in told] == ["created", "opened", "committed", "opened", "fenced", "fenced"]


async def test_an_arena_takes_the_name_and_the_place_of_one_without_a_writer(machine, writer, other):
    async with machine.vault() as vault:
        first = await committed(vault, writer.process)
        second = await opened(vault, other.process, replace(SPEC, name="copy"))
        await put(vault, second, other.process, 1)
        with pytest.raises(ArenaBusy):
            vault.arenas.replace(first.id, second.id, 1, other.process, None)
        await vault.arenas.close(first.id, writer.process)
        with pytest.raises(StaleGeneration):
            vault.arenas.replace(first.id, second.id, 1, writer.process, None)
        assert vault.arenas.find("model").id == first.id
        arena, gone = vault.arenas.replace(first.id, second.id, 1, other.process, None)
        assert (arena.id, arena.name, arena.generation, arena.writer) == (second.id, "model", 2, other.process)
        assert (gone.id, gone.is_sealed, gone.ttl_seconds) == (first.id, True, 60.0)
        with pytest.raises(StaleGeneration):
            await put(vault, second, other.process, 2)  # in the generation before
        with pytest.raises(NoSuchArena):
            vault.arenas.find("copy")
    async with machine.vault() as vault:  # after a kill -9
        arena, gone = vault.arenas.find("model"), vault.arenas.find(f"model.replaced-{first.id}")
        assert (arena.id, arena.generation, arena.writer) == (second.id, 2, other.process)
        assert gone.is_sealed
        with pytest.raises(ArenaSealed):
            await vault.arenas.open(gone.id, Access.WRITE, writer.process, 0)
        assert (await vault.arenas.commit(arena.id, 2, other.process, None)).allocations == 1
        await vault.arenas.remove(gone.id)
        assert vault.arenas.find("model").id == second.id


async def test_a_sealed_arena_keeps_its_name(machine, writer, other):
    """The members of its service may write it, and only its owner may remove it."""
    async with machine.vault() as vault:
        first = await committed(vault, writer.process)
        await vault.arenas.seal(first.id, 1, writer.process)
        second = await opened(vault, other.process, replace(SPEC, name="copy"))
        with pytest.raises(ArenaSealed):
            vault.arenas.replace(first.id, second.id, 1, other.process, None)
        assert vault.arenas.find("model").id == first.id
        assert vault.arenas.find("copy").generation == 1


async def test_another_users_arena_of_the_name_that_comes_next_keeps_no_arena_from_being_replaced(machine, writer, other):
    """Each attempt failed: a service could neither move to its replica, nor fail over to it when its GPU failed."""
    async with machine.vault() as vault:
        first = await opened(vault, writer.process)
        for name in (f"model.replaced-{first.id}", f"model.replaced-{first.id}.2"):
            await vault.arenas.create(replace(SPEC, name=name), STRANGER, STRANGER, None)
        second = await opened(vault, other.process, replace(SPEC, name="copy"))
        arena, gone = vault.arenas.replace(first.id, second.id, 1, other.process, writer.process)
        assert (arena.name, gone.name) == ("model", f"model.replaced-{first.id}.3")


async def test_a_killed_writer_of_a_replaced_arena_opens_none_and_leaves_no_change(machine, writer, other):
    async with machine.vault() as vault:
        first = await committed(vault, writer.process)
        await put(vault, first, writer.process, 1)
        second = await opened(vault, other.process, replace(SPEC, name="copy"))
        _, gone = vault.arenas.replace(first.id, second.id, 1, other.process, writer.process)
        assert (gone.writer, gone.used_bytes, gone.allocations) == (None, GRANULE, 1)
        with pytest.raises(ArenaSealed):
            await put(vault, first, writer.process, 2)
        with pytest.raises(NotAllowed):
            await vault.arenas.open(second.id, Access.READ, writer.process, 0)
    async with machine.vault() as vault:
        assert vault.arenas.find_id(first.id).writer is None
