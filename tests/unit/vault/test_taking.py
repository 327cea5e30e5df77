"""The parts of an arena that a request returns: one commit, the changes since another one, the layout with it."""

import pytest

from mpsd.errors import NotAllowed
from mpsd.model.arena import GRANULE, Access
from tests.unit.vault.machine import committed, memory, opened, put, read


def contents(portion):
    """The granules that came, with the commits that they came with; and what was in the descriptors, which are closed."""
    return [(each.offset // GRANULE, each.since) for each in portion.allocations], [read(each) for each in portion.fds]


async def test_what_came_with_a_commit_that_is_known_comes_without_a_descriptor(machine, writer):
    """Also what took the place of another, and of the same size, is new."""
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process, places=(0, 1, 2))
        take = vault.arenas.take
        assert contents(await take(arena.id, writer.process, None, 9)) == ([(0, 1), (1, 1), (2, 1)], [b"0", b"1", b"2"])
        assert contents(await take(arena.id, writer.process, None, 9, 1)) == ([(0, 1), (1, 1), (2, 1)], [])
        await vault.arenas.drop(arena.id, 1, writer.process, [GRANULE])
        arena = await vault.arenas.commit(arena.id, 1, writer.process, None)
        await put(vault, arena, writer.process, 1, text=b"again")
        assert contents(await take(arena.id, writer.process, None, 9, 1)) == ([(0, 1), (2, 1)], [])
        arena = await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert arena.commit == 3
        assert contents(await take(arena.id, writer.process, None, 9, 2)) == ([(0, 1), (1, 3), (2, 1)], [b"again"])


async def test_the_commit_that_something_came_with_is_known_to_the_next_mpsd(machine, writer):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await put(vault, arena, writer.process, 5)
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"words"))
    async with machine.vault() as vault:
        found = await vault.arenas.take(arena.id, writer.process, None, 1, 1, with_layout=True)
        assert (found.arena.commit, found.has_layout, found.has_more) == (2, True, True)
        assert contents(found) == ([(0, 1)], [b"words"])
        found = await vault.arenas.take(arena.id, writer.process, 0, 1, 1)
        assert (found.has_layout, found.has_more) == (False, False)
        assert contents(found) == ([(5, 2)], [b"5"])


async def test_it_is_known_how_often_a_process_has_opened_an_arena(machine, writer, other):
    """A process that could not map the arena closes only what no other part of it has open."""
    async with machine.vault() as vault:
        arenas, process = vault.arenas, writer.process
        arena = await opened(vault, process)
        assert arenas.openings(arena.id, process) == 1
        await arenas.open(arena.id, Access.READ, process, 0)
        assert arenas.openings(arena.id, process) == 2
        assert (await arenas.close(arena.id, process, 1)).writer == process
        assert (await arenas.close(arena.id, process, 2)).writer is None
        with pytest.raises(NotAllowed):
            await arenas.close(arena.id, process, 1)
        await arenas.open(arena.id, Access.READ, process, 0)
        await arenas.open(arena.id, Access.READ, other.process, 0)
        assert [arenas.openings(arena.id, each) for each in (process, other.process)] == [1, 1]
    async with machine.vault() as vault:
        await vault.arenas.open(arena.id, Access.READ, process, 0)
        assert vault.arenas.openings(arena.id, process) == 2, "it had it open before, as far as is stored"
