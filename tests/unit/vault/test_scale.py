"""Many arenas, many allocations: what one call costs does not grow with them."""

import os
import resource
import time
import tracemalloc
from dataclasses import replace

import pytest
import trio

from mpsd.arena import GRANULE, Access
from mpsd.policy.arena_settings import VaultSettings
from tests.unit.vault.house import SPEC, at, memory, opened

pytestmark = [pytest.mark.slow, pytest.mark.deadline(600)]
ARENAS, EACH = 1000, 100


def most_held() -> int:
    """What the kernel lets a keeper hold here."""
    return min(ARENAS * EACH, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 2000)


async def test_a_hundred_thousand_allocations_cost_each_the_same(house, writer):
    """Of a thousand arenas, as many as this machine's limit of open files allows; put, commit and take, first ones and last."""
    total = most_held()
    house.most = 131072
    house.settings = VaultSettings(max_arenas=ARENAS, user_arenas=ARENAS, user_allocations=131072)
    spent: list[float] = []
    async with house.vault() as vault:
        piece = memory(b"x")
        tracemalloc.start()
        for number in range(total // EACH):
            began = time.perf_counter()
            arena = await opened(vault, writer.process, replace(SPEC, name=f"a{number}"))
            await vault.arenas.put(arena.id, 1, writer.process, at(*range(EACH)), [os.dup(piece) for _ in range(EACH)])
            await vault.arenas.commit(arena.id, 1, writer.process, None)
            spent.append(time.perf_counter() - began)
        os.close(piece)
        bytes_each = tracemalloc.get_traced_memory()[0] / total
        tracemalloc.stop()
        assert len(await vault.keeper.names()) == total
    first, last = sorted(spent[:50])[25], sorted(spent[-50:])[25]
    each = f"{first / EACH * 1e6:.0f} us each at first, {last / EACH * 1e6:.0f} at the end"
    print(f"{total} allocations: {each}, {bytes_each:.0f} bytes")
    assert last < 3 * first
    assert bytes_each < 1000
    began = time.perf_counter()
    async with house.vault() as vault:
        restart = time.perf_counter() - began
        print(f"a restart with them: {restart:.2f} s")
        assert sum(each.allocations for each in vault.arenas.arenas()) == total
        assert restart < 10


async def test_one_arena_of_many_allocations(house, writer, other):
    """Adopted in pages, none dearer than another; a commit of all is as quick as of none; removed while others are served."""
    total = most_held() // 128 * 128
    house.most = 131072
    house.settings = VaultSettings(user_allocations=131072)
    async with house.vault() as vault:
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
            items, fds = await vault.arenas.take(arena.id, other.process, after, 128)
            pages.append(time.perf_counter() - began)
            for descriptor in fds:
                os.close(descriptor)
            if len(items) < 128:
                break
            after = items[-1].offset
        await vault.arenas.close(arena.id, other.process)
        longest = await removed_while_served(vault, arena.id)
        assert await vault.keeper.names() == []
    middle = sorted(pages)[len(pages) // 2]
    page = f"a page of 128: {middle * 1e3:.1f} ms"
    print(f"commit of {total}: {commit * 1e3:.1f} ms; {page}; longest wait: {longest * 1e3:.0f} ms")
    assert commit < 0.5
    assert len(pages) == total // 128 + 1
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
