"""Many arenas, many allocations: what one call costs does not grow with them."""

import os
import signal
import time
import tracemalloc

import pytest
import trio
from msgspec.structs import replace

from mpsd.model.arena import GRANULE, Access
from mpsd.model.process import ProcessId
from mpsd.vault.lifecycle import Vault
from mpsd.vault.rules.settings import VaultSettings
from tests.unit.vault.machine import SPEC, at, memory, opened, until

pytestmark = [pytest.mark.slow, pytest.mark.deadline(600)]
ARENAS, EACH = 1000, 100
KEEPER = 19_900  # descriptors of one, where a process may open 20,000 files
USERS, OF_USER = (1001, 1002, 1003, 1004), 200  # mpsd keeps the last eighth of the slots: an operator makes those arenas


async def test_a_hundred_thousand_allocations_cost_each_the_same(machine, writer):
    """Of a thousand arenas of 4 users and an operator: put and commit of the first and of the last, a restart of mpsd, and the
    death of one keeper, which costs what it had."""
    machine.small_keepers(KEEPER)
    machine.most = 131072
    machine.settings = VaultSettings(max_arenas=ARENAS, operators=frozenset({0}))
    async with machine.vault() as vault:
        spent, bytes_each = await filled(vault, writer.process)
        assert len(await vault.keeper.names()) == ARENAS * EACH
        keepers = len(vault.keeper.pids)
    first, last = sorted(spent[:50])[25], sorted(spent[-50:])[25]
    each = f"{first / EACH * 1e6:.0f} us each at first, {last / EACH * 1e6:.0f} at the end"
    print(f"{ARENAS * EACH} allocations in {keepers} keepers: {each}, {bytes_each:.0f} bytes")
    assert keepers >= ARENAS * EACH / KEEPER
    assert last < 5 * first
    assert bytes_each < 1000
    began = time.perf_counter()
    async with machine.vault() as vault:
        restart = time.perf_counter() - began
        print(f"a restart with them: {restart:.2f} s")
        assert sum(each.allocations for each in vault.arenas.arenas()) == ARENAS * EACH
        assert len(vault.keeper.pids) == keepers
        assert restart < 10
        held = len(vault.keeper._keepers[1].names)
        began = time.perf_counter()
        os.kill(vault.keeper.pids[1], signal.SIGKILL)
        await until(lambda: bool(machine.topics("arena.lost")))
        noticed = time.perf_counter() - began
        lost = len(machine.topics("arena.lost"))
        print(f"one keeper killed: {held} descriptors of it, {lost} arenas lost, {ARENAS - lost} live, after {noticed:.2f} s")
        assert held / EACH <= lost <= held / EACH + 4  # those that it shares with others
        left = (ARENAS - lost) * EACH
        await until(lambda: vault.keeper.held == left)
        assert sum(each.allocations for each in vault.arenas.arenas()) == left
        assert len(await vault.keeper.names()) == left


async def filled(vault: Vault, process: ProcessId) -> tuple[list[float], float]:
    """The seconds that each arena took, and what an allocation costs in bytes."""
    spent: list[float] = []
    tracemalloc.start()
    for number in range(ARENAS):
        pieces = [memory() for _ in range(EACH)]
        began = time.perf_counter()
        uid = USERS[number // OF_USER] if number < OF_USER * len(USERS) else 0
        arena = await opened(vault, process, replace(SPEC, name=f"a{number}"), uid)
        await vault.arenas.put(arena.id, 1, process, at(*range(EACH)), pieces)
        await vault.arenas.commit(arena.id, 1, process, None)
        spent.append(time.perf_counter() - began)
    bytes_each = tracemalloc.get_traced_memory()[0] / (ARENAS * EACH)
    tracemalloc.stop()
    return spent, bytes_each


async def test_one_arena_of_many_allocations(machine, writer, other):
    """Adopted in pages, none dearer than another; a commit of all is as quick as of none; removed while others are served."""
    total = 40_000 // 128 * 128
    machine.small_keepers(KEEPER)
    machine.most = 131072
    machine.settings = VaultSettings(user_allocations=131072)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process, replace(SPEC, capacity_bytes=total * GRANULE))
        piece = memory(b"x")
        for start in range(0, total, 128):
            places = at(*range(start, start + 128))
            await vault.arenas.put(arena.id, 1, writer.process, places, [os.dup(piece) for _ in range(128)])
        os.close(piece)
        began = time.perf_counter()
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        commit = time.perf_counter() - began
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        pages, after = [], None
        while True:
            began = time.perf_counter()
            taken = await vault.arenas.take(arena.id, other.process, after, 128)
            pages.append(time.perf_counter() - began)
            for descriptor in taken.fds:
                os.close(descriptor)
            if not taken.has_more:
                break
            after = taken.allocations[-1].offset
        await vault.arenas.close(arena.id, other.process)
        longest = await removed_while_served(vault, arena.id)
        assert await vault.keeper.names() == []
    middle = sorted(pages)[len(pages) // 2]
    page = f"a page of 128: {middle * 1e3:.1f} ms"
    print(f"commit of {total}: {commit * 1e3:.1f} ms; {page}; longest wait: {longest * 1e3:.0f} ms")
    assert commit < 0.5
    assert len(pages) == total // 128
    assert longest < 1.0


async def removed_while_served(vault, arena_id) -> float:
    """The longest that another task did not get its turn."""
    longest = 0.0
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal longest
            while True:
                began = time.perf_counter()
                await trio.sleep(0.001)
                longest = max(longest, time.perf_counter() - began)

        nursery.start_soon(watch)
        await vault.arenas.remove(arena_id)
        nursery.cancel_scope.cancel()
    return longest
