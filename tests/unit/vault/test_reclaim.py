"""Users take turns where memory is given back: one who frees much delays no other."""

import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from mpsd.errors import KeeperFailed
from tests.unit.vault.machine import SPEC, STRANGER, committed, memory, opened, put, taken

PIECE = 256  # names of one user in a turn


class Gate:
    """A keeper that drops only what it is let, and notes it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.may: list[trio.Event] = []

    async def drop(self, names: list[str]) -> None:
        self.asked.append(list(names))
        self.may.append(trio.Event())
        await self.may[-1].wait()


async def test_a_commit_does_not_wait_until_another_users_memory_is_free(machine, writer, other, monkeypatch):
    async with machine.vault() as vault:
        big = await committed(vault, writer.process, replace(SPEC, name="big"), places=range(8))
        small = await opened(vault, other.process, uid=STRANGER)
        await put(vault, small, other.process, 0)
        await vault.arenas.close(big.id, writer.process)
        gate = Gate()
        monkeypatch.setattr(vault.keeper, "drop", gate.drop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vault.arenas.remove, big.id)
            await wait_all_tasks_blocked()
            assert len(gate.asked) == 1, "the removal is under way"
            with trio.fail_after(10):
                await vault.arenas.commit(small.id, small.generation, other.process, None)
            gate.may[0].set()
        assert await taken(vault, small, other.process) == {0: b"0"}


async def test_users_take_turns(machine, writer, other, monkeypatch):
    """The second one's layout goes after a piece of what the first one frees, and not after all of it."""
    async with machine.vault() as vault:
        big = await opened(vault, writer.process, replace(SPEC, name="big"))
        small = await opened(vault, other.process, uid=STRANGER)
        gate, ended = Gate(), []
        monkeypatch.setattr(vault.keeper, "drop", gate.drop)
        vault.reclaimer.drop(big, map(str, range(3 * PIECE)))
        vault.reclaimer.drop(small, ["small"])

        async def settle(arena, name):
            await vault.reclaimer.settled(arena)
            ended.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle, big, "big")
            nursery.start_soon(settle, small, "small")
            for number in range(4):
                await wait_all_tasks_blocked()
                gate.may[number].set()
        assert [len(names) for names in gate.asked] == [PIECE, 1, PIECE, PIECE]
        assert ended == ["small", "big"]


async def test_nobody_waits_for_what_was_given_later(machine, writer, monkeypatch):
    """Also of the same user, whose processes may free memory all the time."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        gate = Gate()
        monkeypatch.setattr(vault.keeper, "drop", gate.drop)
        vault.reclaimer.drop(arena, ["first"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vault.reclaimer.settled, arena)
            await wait_all_tasks_blocked()
            vault.reclaimer.drop(arena, ["second"])
            gate.may[0].set()
            await wait_all_tasks_blocked()
            assert gate.asked == [["first"], ["second"]]
            assert not nursery.child_tasks
        gate.may[1].set()


async def test_a_keeper_that_fails_ends_the_wait(machine, writer, monkeypatch):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)

        async def fail(names: list[str]) -> None:
            raise KeeperFailed("silent")

        monkeypatch.setattr(vault.keeper, "drop", fail)
        with trio.fail_after(10):
            await vault.arenas.commit(arena.id, arena.generation, writer.process, memory(b"a layout"))
            await vault.arenas.commit(arena.id, arena.generation, writer.process, memory(b"another"))


async def test_rows_are_forgotten_while_a_user_frees_memory_all_the_time(machine, writer, monkeypatch):
    """They stayed until no user freed any, and the database grew with each arena that was removed meanwhile."""
    async with machine.vault() as vault:
        arena, forgotten = await opened(vault, writer.process), []

        async def drop(names: list[str]) -> None:
            await trio.lowlevel.checkpoint()
            vault.reclaimer.drop(arena, names)

        def forget(arena_id: int) -> bool:
            forgotten.append(arena_id)
            return False

        monkeypatch.setattr(vault.keeper, "drop", drop)
        monkeypatch.setattr(vault.store, "forget_allocations", forget)
        vault.reclaimer.drop(arena, ["one"])
        vault.reclaimer.forget([1, 2])
        with trio.fail_after(10):
            while forgotten != [1, 2]:
                await trio.lowlevel.checkpoint()
