"""A commit that drops many allocations: it takes little time itself, and what is left to delete means nothing any more."""

import sqlite3

import pytest
import trio

from mpsd.model.arena import GRANULE, Access
from tests.unit.vault.machine import committed, taken, until

KEPT, DROPPED, SOME = (8, 9), range(8), 3


def rows(machine) -> int:
    database = sqlite3.connect(machine.directory / "vault.db")
    try:
        return database.execute("SELECT count(*) FROM allocations").fetchone()[0]
    finally:
        database.close()


async def drop_most(vault, process):
    """Return an arena of which a commit has dropped most."""
    arena = await committed(vault, process, places=range(len(DROPPED) + len(KEPT)))
    await vault.arenas.drop(arena.id, arena.generation, process, [place * GRANULE for place in DROPPED])
    return await vault.arenas.commit(arena.id, arena.generation, process, None)


@pytest.fixture
def few_at_once(monkeypatch):
    monkeypatch.setattr("mpsd.vault.store._SOME", SOME)


async def test_a_commit_deletes_some_rows_and_the_rest_follow_piece_by_piece(machine, writer, few_at_once):
    """A commit deleted all itself, and other tasks waited: 0.87 s for 65,536."""
    async with machine.vault() as vault:
        left, forget = [], vault.store.forget_allocations

        def watched(arena_id):
            left.append(rows(machine))
            return forget(arena_id)

        vault.store.forget_allocations = watched
        arena = await drop_most(vault, writer.process)
        assert (arena.allocations, arena.used_bytes) == (len(KEPT), len(KEPT) * GRANULE)
        await until(lambda: rows(machine) == len(KEPT))
        assert left[:2] == [7, 4]
        assert set(await taken(vault, arena, writer.process)) == set(KEPT)


@pytest.mark.parametrize("rolls_back", [False, True])
async def test_rows_that_a_dead_mpsd_left_mean_nothing(machine, writer, other, few_at_once, rolls_back):
    async with machine.vault() as vault:
        vault.reclaimer.forget = lambda arena_ids: None
        arena = await drop_most(vault, writer.process)
        if rolls_back:
            await vault.arenas.drop(arena.id, arena.generation, writer.process, [KEPT[0] * GRANULE])
            await vault.arenas.close(arena.id, writer.process)
        assert rows(machine) == len(KEPT) + len(DROPPED) - SOME
    async with machine.vault() as vault:
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        assert set(await taken(vault, arena, other.process)) == set(KEPT)
        await until(lambda: rows(machine) == len(KEPT))
        assert set(await taken(vault, arena, other.process)) == set(KEPT)


async def test_other_tasks_run_while_a_commit_names_what_is_gone(machine, writer, monkeypatch):
    monkeypatch.setattr("mpsd.vault.allocations._AT_ONCE", 1)
    turns = []

    async def take_turns():
        while True:
            await trio.lowlevel.checkpoint()
            turns.append(entry.contents.dropped)

    async with machine.vault() as vault, trio.open_nursery() as nursery:
        arena = await committed(vault, writer.process, places=range(len(DROPPED)))
        entry = vault.catalog.find_id(arena.id)
        await vault.arenas.drop(arena.id, arena.generation, writer.process, [place * GRANULE for place in DROPPED])
        nursery.start_soon(take_turns)
        await vault.arenas.commit(arena.id, arena.generation, writer.process, None)
        assert len([each for each in turns if each]) >= len(DROPPED)
        nursery.cancel_scope.cancel()


async def test_to_delete_the_rest_reads_nothing_of_what_the_arena_still_has(machine, writer, few_at_once):
    """It read each row of the arena each time, and other tasks waited: 32 ms with 65,536."""
    async with machine.vault() as vault:
        vault.reclaimer.forget = lambda arena_ids: None
        arena = await drop_most(vault, writer.process)
        database, kept, steps = vault.store._db, 5000, []
        database.executemany(
            "INSERT INTO allocations VALUES (?, ?, ?, ?, 1, NULL)",
            ((1000 + number, arena.id, number * GRANULE, GRANULE) for number in range(kept)),
        )
        database.set_progress_handler(lambda: steps.append(1) and None, 1)
        while vault.store.forget_allocations(arena.id):
            pass
        database.set_progress_handler(None, 1)
        assert rows(machine) == len(KEPT) + kept
        assert len(steps) < kept
