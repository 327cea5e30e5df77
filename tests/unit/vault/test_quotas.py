"""Quotas in a running vault: counted as memory comes, given back as it goes, never passed by two at once."""

import os
import threading

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import BadRequest, KeeperFailed, NoRoom, NoSuchDevice
from mpsd.model.arena import GRANULE
from mpsd.vault.rules.settings import VaultSettings
from tests.unit.vault.machine import GPU, SPEC, STRANGER, USER, at, committed, memory, opened, put, until

TWO = VaultSettings(user_memory_bytes=2 * GRANULE, user_allocations=100)
SMALL = replace(SPEC, capacity_bytes=2 * GRANULE)


async def test_what_is_dropped_or_rolled_back_makes_room_again(machine, writer):
    machine.settings = TWO
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process, SMALL)
        await put(vault, arena, writer.process, 0, 1)
        second = await opened(vault, writer.process, replace(SMALL, name="second"))
        with pytest.raises(NoRoom, match=f"user {USER}"):
            await put(vault, second, writer.process, 0)
        await vault.arenas.drop(arena.id, 1, writer.process, [0])
        await put(vault, second, writer.process, 0)
        await vault.arenas.close(arena.id, writer.process)
        await put(vault, second, writer.process, 1)
        assert vault.catalog.account.used_bytes[GPU] == 2 * GRANULE


async def test_others_have_a_quota_of_their_own_and_operators_none(machine, writer):
    machine.settings = replace(TWO, operators=frozenset({0}))
    async with machine.vault() as vault:
        await committed(vault, writer.process, SMALL, places=(0, 1))
        await committed(vault, writer.process, replace(SMALL, name="theirs"), STRANGER, places=(0, 1))
        await committed(vault, writer.process, replace(SPEC, name="root's"), 0, places=range(8))


async def test_two_who_put_at_once_do_not_pass_a_quota_together(machine, writer, other):
    """Each fits alone: what one asked for counts while its keeper is still asked."""
    machine.settings = TWO
    refused = []
    async with machine.vault() as vault:
        first = await opened(vault, writer.process, SMALL)
        second = await opened(vault, other.process, replace(SMALL, name="second"))

        async def fill(arena, process) -> None:
            try:
                await vault.arenas.put(arena.id, 1, process, at(0, 1), [memory(), memory()])
            except NoRoom:
                refused.append(process)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, first, writer.process)
            nursery.start_soon(fill, second, other.process)
        assert len(refused) == 1
        assert vault.catalog.account.used_bytes[GPU] == 2 * GRANULE


async def test_a_leases_memory_bounds_its_arenas_together_as_long_as_it_lives(machine, writer):
    machine.leases[writer.process] = 7
    machine.lease_bytes[7, GPU] = 3 * GRANULE
    async with machine.vault() as vault:
        with pytest.raises(NoRoom, match="lease 7"):
            await vault.arenas.create(SPEC, USER, USER, writer.process)
        await committed(vault, writer.process, SMALL, places=(0, 1))
        second = await opened(vault, writer.process, replace(SMALL, name="second"))
        with pytest.raises(NoRoom, match="lease 7"):
            await put(vault, second, writer.process, 0, 1)
        await put(vault, second, writer.process, 0)
        assert second.lease_id == 7
        machine.lease_bytes.clear()
        await put(vault, second, writer.process, 1)


async def test_what_was_counted_is_counted_by_the_next_mpsd(machine, writer):
    machine.settings = TWO
    async with machine.vault() as vault:
        await committed(vault, writer.process, SMALL, places=(0, 1))
    async with machine.vault() as vault:
        second = await opened(vault, writer.process, replace(SMALL, name="second"))
        with pytest.raises(NoRoom):
            await put(vault, second, writer.process, 0)


async def test_a_keeper_that_is_full_refuses_and_keeps_what_it_has(machine, writer):
    machine.most = 3
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process, places=(0, 1))
        with pytest.raises(NoRoom, match="can hold 3 descriptors"):
            await put(vault, arena, writer.process, 2, 3)
        assert len(await vault.keeper.names()) == 2
        await put(vault, arena, writer.process, 2)


async def test_a_gpu_that_is_not_here(machine):
    async with machine.vault() as vault:
        with pytest.raises(NoSuchDevice):
            await vault.arenas.create(replace(SPEC, gpu="7"), USER, USER, None)


async def test_the_layouts_of_one_user_keep_no_other_waiting(machine, writer, monkeypatch):
    """Layouts of 16 MiB in 60 connections took all of mpsd's threads: another user's commit took a second, for as long as the
    user liked."""
    reading: list[str] = []
    over = threading.Event()

    def read_slowly(descriptor: int) -> None:
        reading.append(os.pread(descriptor, 16, 0).decode())
        over.wait()
        raise BadRequest("enough")

    async def commit(arena, text: bytes) -> None:
        with pytest.raises(BadRequest, match="enough"):
            await vault.arenas.commit(arena.id, 1, writer.process, memory(text))

    monkeypatch.setattr("mpsd.vault.allocations.read_layout", read_slowly)
    monkeypatch.setattr("mpsd.vault.allocations._READERS", 3, raising=False)
    trio.to_thread.current_default_thread_limiter().total_tokens = 2
    async with machine.vault() as vault:
        many = [await opened(vault, writer.process, replace(SPEC, name=f"a{number}")) for number in range(4)]
        one = await opened(vault, writer.process, replace(SPEC, name="one"), STRANGER)
        async with trio.open_nursery() as nursery:
            try:
                for arena in many:
                    nursery.start_soon(commit, arena, b"many")
                await until(lambda: len(reading) == 2)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(commit, one, b"one")
                with trio.fail_after(5):
                    await until(lambda: "one" in reading)
            finally:
                over.set()


async def test_two_who_commit_layouts_at_once_do_not_pass_their_bound_together(machine, writer, monkeypatch):
    """Each fits alone: 64 commits at once had 1 GiB of layouts, of the 128 MiB that a user may have."""
    machine.settings = VaultSettings(layout_bytes=80)  # a user may have an eighth
    asked, refused = [], []
    async with machine.vault() as vault:
        arenas = [await opened(vault, writer.process, replace(SPEC, name=name)) for name in ("first", "second")]
        keep = vault.keeper.put

        async def keep_once_both_are_counted(*arguments) -> None:
            asked.append(arguments)
            await until(lambda: len(asked) + len(refused) == 2)
            await keep(*arguments)

        async def commit(arena) -> None:
            try:
                await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
            except NoRoom:
                refused.append(arena)

        monkeypatch.setattr(vault.keeper, "put", keep_once_both_are_counted)
        async with trio.open_nursery() as nursery:
            for arena in arenas:
                nursery.start_soon(commit, arena)
        assert len(refused) == 1
        monkeypatch.undo()
        [kept] = {each.id for each in arenas} - {each.id for each in refused}
        await vault.arenas.commit(kept, 1, writer.process, memory(b"one of 10b"))
        with pytest.raises(NoRoom):
            await vault.arenas.commit(refused[0].id, 1, writer.process, memory(b"1"))


async def test_a_layout_that_the_keeper_did_not_take_counts_no_longer(machine, writer, monkeypatch):
    machine.settings = VaultSettings(layout_bytes=80)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)

        async def fail(*arguments) -> None:
            raise KeeperFailed("it does not answer")

        monkeypatch.setattr(vault.keeper, "put", fail)
        with pytest.raises(KeeperFailed):
            await vault.arenas.commit(arena.id, 1, writer.process, memory(b"one of 10b"))
        monkeypatch.undo()
        other = await opened(vault, writer.process, replace(SPEC, name="other"))
        await vault.arenas.commit(other.id, 1, writer.process, memory(b"one of 10b"))
