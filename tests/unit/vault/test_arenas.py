"""The life of an arena: written, committed, adopted, sealed, left, removed."""

import os
import sqlite3
import threading

import pytest
import trio.testing
from msgspec.structs import replace

from mpsd.errors import (
    ArenaBusy,
    ArenaSealed,
    BadRequest,
    NoRoom,
    NoSuchArena,
    NotAllowed,
    StaleGeneration,
    TooMany,
    UnusablePath,
)
from mpsd.host import descriptors as host_descriptors
from mpsd.host.descriptors import close_all
from mpsd.model.arena import FIRST_ADDRESS, GRANULE, WINDOW_UNIT, Access, ArenaSpec
from mpsd.vault.rules import usage
from mpsd.vault.rules.settings import Eviction, VaultSettings
from tests.descriptors import descriptors
from tests.unit.vault.machine import (
    GPU,
    OTHER_GPU,
    SPEC,
    STRANGER,
    USER,
    at,
    committed,
    memory,
    opened,
    put,
    read,
    taken,
    until,
)

NOT_EXPIRED = "2 not expired (vault.eviction)"
OPEN = "1 open in a process; of other users: none may go (vault.evict_from)"


async def test_what_was_committed_is_there_for_the_next_and_nothing_else(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0, 1, 2)
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout 1"))
        await vault.arenas.drop(arena.id, 1, writer.process, [GRANULE])
        await put(vault, arena, writer.process, 7)
        await vault.arenas.close(arena.id, writer.process)
        arena = await vault.arenas.open(arena.id, Access.WRITE, other.process, 0)
        assert arena.generation == 2
        assert await taken(vault, arena, other.process) == {0: b"0", 1: b"1", 2: b"2"}
        found, descriptor = await vault.arenas.layout(arena.id, other.process)
        assert (read(descriptor), found.layout_bytes) == (b"layout 1", 8)
        assert arena.used_bytes == 3 * GRANULE


async def test_a_commit_takes_what_was_put_and_lets_go_what_was_dropped(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0, 1)
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        await vault.arenas.drop(arena.id, 1, writer.process, [0])
        assert await taken(vault, arena, writer.process) == {0: b"0", 1: b"1"}
        await put(vault, arena, writer.process, 2)
        arena = await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert await taken(vault, arena, writer.process) == {1: b"1", 2: b"2"}
        assert (arena.allocations, arena.used_bytes, arena.layout_hash) == (2, 2 * GRANULE, "")


async def test_the_same_put_once_more_replaces(machine, writer):
    """A client repeats a request without an answer."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0, text=b"lost answer")
        arena = await put(vault, arena, writer.process, 0, text=b"again")
        assert arena.used_bytes == GRANULE
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert await taken(vault, arena, writer.process) == {0: b"again"}


async def test_a_refused_put_leaves_nothing_behind(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        await trio.testing.wait_all_tasks_blocked()
        before = descriptors()
        with pytest.raises(BadRequest, match="overlaps"):
            await vault.arenas.put(arena.id, 1, writer.process, at(1, 1), [memory(), memory()])
        pipe = os.pipe()
        with pytest.raises(BadRequest, match="not simulated GPU memory: it is a pipe"):
            await vault.arenas.put(arena.id, 1, writer.process, at(1), [pipe[0]])
        os.close(pipe[1])
        with pytest.raises(BadRequest, match="2 allocations came with 1 descriptors"):
            await vault.arenas.put(arena.id, 1, writer.process, at(1, 2), [memory()])
        assert descriptors() == before
        assert vault.arenas.find("model").used_bytes == GRANULE
        assert set(await vault.keeper.names()) == {"m.000000000001"}


async def test_what_cannot_be_stored_is_refused_and_not_held(machine, writer, other):
    """The disk is full: the answer reports it, and the keeper holds no unknown memory."""
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)

        def full() -> None:
            raise sqlite3.OperationalError("database or disk is full")

        vault.store.before_writing = full
        with pytest.raises(UnusablePath, match="disk is full"):
            await put(vault, arena, writer.process, 1)
        with pytest.raises(UnusablePath, match="disk is full"):
            await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
        with pytest.raises(UnusablePath, match="disk is full"):
            await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        assert vault.holders.count == 1, "a process without an arena counted until it ended"
        await vault.reclaimer.settled(arena)
        assert await vault.keeper.names() == ["m.000000000001"]
        assert vault.catalog.account.used_bytes[GPU] == vault.arenas.find("model").used_bytes == GRANULE


async def test_only_the_writer_of_this_generation_writes(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        for generation, process in ((0, writer.process), (2, writer.process), (1, other.process)):
            with pytest.raises(StaleGeneration):
                await vault.arenas.put(arena.id, generation, process, at(0), [memory()])
            with pytest.raises(StaleGeneration):
                await vault.arenas.drop(arena.id, generation, process, [0])
            with pytest.raises(StaleGeneration):
                await vault.arenas.commit(arena.id, generation, process, memory(b"x"))
            with pytest.raises(StaleGeneration):
                await vault.arenas.seal(arena.id, generation, process)


async def test_only_who_holds_it_takes(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        for ask in (vault.arenas.layout, vault.arenas.close):
            with pytest.raises(NotAllowed, match="not open"):
                await ask(arena.id, other.process)
        with pytest.raises(NotAllowed, match="not open"):
            await vault.arenas.take(arena.id, other.process, None, 1)


async def test_a_sealed_one_is_read_by_many_and_written_by_nobody(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        await put(vault, arena, writer.process, 1)
        arena = await vault.arenas.seal(arena.id, 1, writer.process)
        assert (arena.writer, arena.readers, arena.is_sealed) == (None, (writer.process,), True)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        for process in (writer.process, other.process):
            assert await taken(vault, arena, process) == {0: b"0"}
        with pytest.raises(ArenaSealed):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, 0)
        with pytest.raises(ArenaSealed):
            await vault.arenas.put(arena.id, 1, writer.process, at(5), [memory()])


async def test_opening_twice_is_opening_once(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        assert (await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)).generation == 1
        for _ in range(2):
            arena = await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        assert arena.readers == (other.process,)


async def test_it_is_removed_when_nobody_has_it_open(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0, 1)
        with pytest.raises(ArenaBusy, match=f"open in pid {writer.process.pid}"):
            await vault.arenas.remove(arena.id)
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.remove(arena.id)
        assert await vault.keeper.names() == []
        with pytest.raises(NoSuchArena):
            vault.arenas.find("model")
        assert vault.catalog.account.used_bytes[GPU] == 0


async def test_windows_are_apart_and_given_again(machine):
    async with machine.vault() as vault:
        made = [await vault.arenas.create(replace(SPEC, name=name), USER, USER, None) for name in "abc"]
        assert [arena.base - FIRST_ADDRESS for arena in made] == [0, 2 * WINDOW_UNIT, 4 * WINDOW_UNIT]
        await vault.arenas.remove(made[1].id)
        again = await vault.arenas.create(replace(SPEC, name="d"), USER, USER, None)
        assert again.base == made[1].base


async def test_a_window_grows_where_it_can(machine):
    async with machine.vault() as vault:
        first = await vault.arenas.create(SPEC, USER, USER, None)
        second = await vault.arenas.create(replace(SPEC, name="b"), USER, USER, None)
        with pytest.raises(NoRoom, match="cannot grow"):
            await vault.arenas.change(first.id, 3 * WINDOW_UNIT, None, None)
        assert (await vault.arenas.change(first.id, 2 * WINDOW_UNIT, 0o640, None)).window_bytes == 2 * WINDOW_UNIT
        grown = await vault.arenas.change(second.id, 5 * WINDOW_UNIT, None, 7.0)
        assert (grown.base, grown.window_bytes, grown.ttl_seconds) == (second.base, 5 * WINDOW_UNIT, 7.0)
        assert (await vault.arenas.change(second.id, None, None, 0)).ttl_seconds is None


async def test_a_window_grows_within_the_addresses_of_its_user(machine, monkeypatch):
    monkeypatch.setattr(usage, "_WINDOWS_OF_USER", 4 * WINDOW_UNIT)
    async with machine.vault() as vault:
        arena = await vault.arenas.create(SPEC, USER, USER, None)
        with pytest.raises(NoRoom, match="addresses"):
            await vault.arenas.change(arena.id, 5 * WINDOW_UNIT, None, None)
        assert (await vault.arenas.change(arena.id, 4 * WINDOW_UNIT, None, None)).window_bytes == 4 * WINDOW_UNIT


async def test_a_capacity_below_what_is_there_is_refused(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0, 1)
        with pytest.raises(BadRequest, match="holds"):
            await vault.arenas.change(arena.id, GRANULE, None, None)


async def test_a_name_is_given_once(machine):
    async with machine.vault() as vault:
        await vault.arenas.create(SPEC, USER, USER, None)
        with pytest.raises(BadRequest, match=r"the name model already$"):
            await vault.arenas.create(SPEC, USER, USER, None)
        with pytest.raises(BadRequest, match=rf"model already: it belongs to user {USER}, and an operator can remove it$"):
            await vault.arenas.create(SPEC, STRANGER, STRANGER, None)


async def test_a_layout_that_is_no_layout_changes_nothing(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        ours, theirs = os.pipe()
        os.close(theirs)
        for layout, why in ((ours, "memory file"), (os.open("/etc/passwd", os.O_RDONLY), "memory file"), (memory(), "0 bytes")):
            with pytest.raises(BadRequest, match=why):
                await vault.arenas.commit(arena.id, 1, writer.process, layout)
        assert vault.arenas.find("model").allocations == 0


async def test_a_thread_closes_the_file_of_a_layout(machine, writer, monkeypatch):
    """Its owner can have made it large in the meantime, and closed it: freeing it takes long."""
    closed = []

    def close(fds):
        closed.append((threading.current_thread(), *fds))
        close_all(fds)

    monkeypatch.setattr(host_descriptors, "close_all", close)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        layout = memory(b"layout", seals=0)
        await vault.arenas.commit(arena.id, 1, writer.process, layout)
        await until(lambda: any(layout in fds for _, *fds in closed))
    assert all(thread is not threading.main_thread() for thread, *fds in closed if layout in fds)


async def test_a_stranger_cannot_change_a_layout_that_it_gave(machine, writer):
    """Neither the file that it came in, nor the one that goes out."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        layout = memory(b"as it was", seals=0)
        kept = os.dup(layout)
        await vault.arenas.commit(arena.id, 1, writer.process, layout)
        os.pwrite(kept, b"as it is ", 0)
        os.close(kept)
        _, descriptor = await vault.arenas.layout(arena.id, writer.process)
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(descriptor, b"x", 0)
        assert read(descriptor) == b"as it was"


async def test_its_time_runs_while_nobody_has_it_open(machine, writer):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process, replace(SPEC, ttl_seconds=60.0))
        machine.now += 3600
        await vault.arenas.create(replace(SPEC, name="other", ttl_seconds=1e9), USER, USER, None)  # it looks again
        await trio.testing.wait_all_tasks_blocked()
        assert vault.arenas.find("model").ttl_seconds == 60.0
        assert list(vault.catalog.ends) == [vault.arenas.find("other").id]
        await vault.arenas.close(arena.id, writer.process)
        machine.now += 61
        await vault.arenas.change(vault.arenas.find("other").id, None, None, 5.0)
        await until(lambda: bool(machine.topics("arena.expired")))
        with pytest.raises(NoSuchArena):
            vault.arenas.find("model")


async def test_a_clock_that_is_set_forward_ends_its_time_within_a_minute(machine, writer, autojump_clock):
    """mpsd slept until the end of the time by another clock."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process, replace(SPEC, ttl_seconds=3600.0))
        await vault.arenas.close(arena.id, writer.process)
        await trio.testing.wait_all_tasks_blocked()
        machine.now += 3601
        await trio.sleep(61.0)
        assert machine.topics("arena.expired")


@pytest.mark.parametrize(
    ("settings", "gone", "left"),
    [
        pytest.param(VaultSettings(), [], "mpsd evicts no arena: vault.eviction is off", id="off"),
        pytest.param(VaultSettings(eviction=Eviction.EXPIRED), [], f"{NOT_EXPIRED}, {OPEN}", id="expired"),
        pytest.param(VaultSettings(eviction=Eviction.UNHELD), ["oldest"], OPEN, id="the oldest of the asker's own"),
        pytest.param(VaultSettings(eviction=Eviction.UNHELD, evicts_all=True), ["theirs"], "1 open", id="anybody's"),
    ],
)
async def test_room_is_made_of_what_nobody_holds(machine, writer, other, settings, gone, left):
    machine.settings = settings
    async with machine.vault() as vault:
        for name, uid in (("theirs", STRANGER), ("oldest", USER), ("younger", USER), ("elsewhere", USER)):
            gpu = OTHER_GPU if name == "elsewhere" else GPU
            arena = await committed(vault, writer.process, ArenaSpec(name, gpu, 1 << 30), uid)
            machine.now += 1
            await vault.arenas.close(arena.id, writer.process)
        await committed(vault, other.process, replace(SPEC, name="held"))
        evicted, why = await vault.arenas.make_room(GPU, GRANULE, USER, is_operator=False)
        assert [each.name for each in evicted] == gone
        assert (why == "") is bool(gone)
        everything, why = await vault.arenas.make_room(GPU, 1 << 40, USER, is_operator=False)
        assert "held" not in [each.name for each in everything]
        assert left in why
        assert vault.arenas.find("held").used_bytes == GRANULE
        assert vault.arenas.find("elsewhere")


@pytest.mark.parametrize("evicts_all", [False, True])
async def test_who_makes_room_does_not_learn_how_many_arenas_others_have(machine, writer, evicts_all):
    machine.settings = VaultSettings(eviction=Eviction.UNHELD, evicts_all=evicts_all)
    async with machine.vault() as vault:
        _, before = await vault.arenas.make_room(GPU, 1 << 40, USER, is_operator=False)
        await committed(vault, writer.process, ArenaSpec("theirs", GPU, 1 << 30), STRANGER)
        _, after = await vault.arenas.make_room(GPU, 1 << 40, USER, is_operator=False)
        assert after == before
        _, told = await vault.arenas.make_room(GPU, 1 << 40, USER, is_operator=True)
        assert told == "the arenas that are left there: 1 open in a process"


@pytest.mark.parametrize(("is_operator", "gone"), [(False, []), (True, ["theirs"])])
async def test_a_uid_alone_makes_no_operator_who_evicts(machine, writer, is_operator, gone):
    """Root of a container has root's uid."""
    machine.settings = VaultSettings(eviction=Eviction.UNHELD, operators=frozenset({0}))
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process, ArenaSpec("theirs", GPU, 1 << 30), USER)
        await vault.arenas.close(arena.id, writer.process)
        made, _ = await vault.arenas.make_room(GPU, GRANULE, 0, is_operator=is_operator)
        assert [each.name for each in made] == gone


async def test_no_arena_is_larger_than_its_gpu(machine, writer):
    """Nor does one grow beyond it: it could never be filled."""
    async with machine.vault() as vault:
        total = 80 << 30
        found = r"a capacity of 81922M for arena model: GPU 0 \(.*\) has 80G"
        with pytest.raises(BadRequest, match=found):
            await vault.arenas.create(replace(SPEC, capacity_bytes=total + GRANULE), USER, USER, None)
        arena = await opened(vault, writer.process)
        with pytest.raises(BadRequest, match="for arena model: GPU 0"):
            await vault.arenas.change(arena.id, total + GRANULE, None, None)


async def test_what_becomes_roots_counts_against_the_user_who_connected(machine, writer, other, monkeypatch):
    """A child opens the arena by the connection that it has inherited; its parent has executed a program of root's."""
    monkeypatch.setattr("mpsd.vault.fencing.MOST_OF_USER", 1)
    monkeypatch.setattr("mpsd.host.processes.charged_uid", lambda pid: STRANGER if pid == writer.process.pid else 0)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        with pytest.raises(TooMany, match=f"user {STRANGER}"):
            await vault.arenas.open(arena.id, Access.READ, other.process, 0, uid=STRANGER)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0, uid=0)
        assert vault.arenas.uid_of(other.process) == 0


async def test_after_a_restart_a_holder_counts_against_the_user_who_connected(machine, writer, other):
    """It counted against the user of its program by then, or against the arena's owner."""
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0, uid=STRANGER)
    async with machine.vault() as vault:
        assert vault.arenas.uid_of(other.process) == STRANGER
        await vault.arenas.close(arena.id, other.process)
        assert vault.store.holder_uids().keys() == {writer.process}
