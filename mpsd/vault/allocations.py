"""Change and read the contents of an arena: memory that is put, dropped, and taken by its holders.

    put     keeper holds the descriptors --> one transaction --> answer      a crash between: descriptors without rows, dropped
    drop    one transaction --> answer, and the keeper closes them           a crash between: the same
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from mpsd.errors import BadRequest, KeeperFailed
from mpsd.host.descriptors import close_soon
from mpsd.keeper.memory_keeper import Item
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.model.arena import Allocation, Arena, KeptState, Portion
from mpsd.model.process import ProcessId
from mpsd.threads import UserThreads, run_in_thread
from mpsd.vault.catalog import Catalog
from mpsd.vault.descriptor_checks import CheckMemory, Layout, check_state, generation_of_state, read_layout
from mpsd.vault.live_arena import LiveArena, layout_name, memory_name, state_name
from mpsd.vault.reclaim import Reclaimer
from mpsd.vault.store import Row, VaultStore

T = TypeVar("T")
_AT_ONCE = 2000  # names that are made at a time
_READERS = 16  # threads that read layouts, of 16 MiB at most: 45 ms of a processor each
_READERS_OF_USER = 2
_STATE_READERS = 64  # threads that read states: a page takes milliseconds if its owner has had it written to swap


class Allocations:
    """Guards that the keeper holds everything that is stored.

    The methods are those of services.Arenas, for use once the keeper was compared.
    """

    def __init__(
        self, catalog: Catalog, store: VaultStore, keeper: VaultKeepers, reclaimer: Reclaimer, check_memory: CheckMemory
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._keeper = keeper
        self._reclaimer = reclaimer
        self._check_memory = check_memory
        self._readers = UserThreads(_READERS_OF_USER, partial(run_in_thread, limiter=trio.CapacityLimiter(_READERS)))
        limiter = trio.CapacityLimiter(_STATE_READERS)
        self._state_readers = UserThreads(_READERS_OF_USER, partial(run_in_thread, limiter=limiter))

    async def put(
        self, entry: LiveArena, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> Arena:
        if len(allocations) != len(fds):
            raise BadRequest(f"{len(allocations)} allocations came with {len(fds)} descriptors")
        for descriptor in fds:
            self._check_memory(descriptor)
        async with entry.lock:
            entry.check_writer(generation, process)
            replaced = await self._put(entry, generation, process, allocations, fds)
            arena = entry.arena
        if replaced:
            await self._reclaimer.settled(arena)
        return arena

    async def _put(
        self, entry: LiveArena, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> bool:
        """Return whether allocations were replaced.  They are counted before the keeper takes them: other requests may run."""
        catalog, arena = self._catalog, entry.arena
        since = entry.row.commits + 1
        numbered = [Allocation(each.offset, each.bytes, catalog.next_serial(), since=since) for each in allocations]
        change = entry.contents.plan_put(numbered, arena.window_bytes)
        more = len(change.added) - len(change.replaced)
        catalog.account.check_growth(arena, change.growth_bytes, more, catalog.bounds(arena))
        names = [memory_name(each.serial) for each in numbered]
        catalog.account.move(arena, change.growth_bytes, more)
        try:
            items = zip(numbered, names, fds, strict=True)
            await self._keeper.put([Item(name, descriptor, each.bytes) for each, name, descriptor in items], entry.newest_name)
            entry.check_writer(generation, process)  # the present memory may have been lost in the meantime
            self._store.put(entry.row, change.added, change.replaced)
        except BaseException:
            catalog.account.move(arena, -change.growth_bytes, -more)
            self._reclaimer.drop(arena, names)
            raise
        entry.contents.put(change)
        self._reclaimer.drop(arena, [memory_name(each.serial) for each in change.replaced])
        entry.become(entry.row)
        return bool(change.replaced)

    async def drop(self, entry: LiveArena, generation: int, process: ProcessId, offsets: Sequence[int]) -> Arena:
        async with entry.lock:
            entry.check_writer(generation, process)
            contents = entry.contents
            change = contents.plan_drop(offsets)
            if change.gone or change.marked:
                self._store.drop(entry.row, change.gone, change.marked)
            before = contents.used_bytes, contents.count
            contents.drop(change)
            self._catalog.count(entry, *before)
            self._reclaimer.drop(entry.arena, [memory_name(each.serial) for each in change.gone])
            arena = entry.become(entry.row)
        await self._reclaimer.settled(arena)
        return arena

    async def commit(
        self, entry: LiveArena, generation: int, process: ProcessId, layout: int | None, state: int | None = None
    ) -> Arena:
        """Commit.  The state may be of an earlier generation: a writer gives a state again after a keeper has lost it."""
        async with entry.lock:
            entry.check_writer(generation, process)
            size = 0 if state is None else await self.read_state(entry.arena, check_state, state, generation, True)
            share = self._catalog.account.share(entry.arena)
            read = None if layout is None else await self._readers.run(share, read_layout, layout)
            try:
                fresh = None if read is None or read.hash == entry.arena.layout_hash else read
                dropped = await _names(entry.contents.dropped)
                async with self._held(entry, generation, process, state, size, fresh) as (kept, serial):
                    row = entry.row
                    if fresh is not None:
                        facts = entry.with_facts(layout_hash=fresh.hash, layout_bytes=fresh.bytes)
                        row = replace(facts, layout_serial=serial)
                    arena = self._commit(entry, replace(row, commits=row.commits + 1, state=kept or row.state), dropped)
            finally:
                if read is not None:
                    os.close(read.descriptor)
        self._catalog.tell("committed", arena, generation=generation, allocations=arena.allocations)
        await self._reclaimer.settled(arena)
        return arena

    def _commit(self, entry: LiveArena, row: Row, gone: list[str]) -> Arena:
        """Store the commit, and drop what is gone: these names, and the layout and the state before."""
        contents, old, state = entry.contents, entry.row.layout_serial, entry.row.state
        if old is not None and old != row.layout_serial:
            gone.append(layout_name(old))
        if state is not None and state != row.state:
            gone.append(state_name(state.serial))
        if self._store.commit(row, None if row.state == state else row.state):
            self._reclaimer.forget([row.arena.id])
        before = contents.used_bytes, contents.count
        contents.commit()
        self._catalog.count(entry, *before)
        self._reclaimer.drop(entry.arena, gone)
        return self._catalog.change(entry, row)

    async def take(
        self, entry: LiveArena, process: ProcessId, after: int | None, limit: int, known: int, with_layout: bool
    ) -> Portion:
        """Return a page of the allocations; all are of one commit."""
        async with entry.lock:
            entry.check_holder(process)
            contents = entry.contents
            found = contents.committed_after(after, limit + 1)
            some, layout = tuple(found[:limit]), entry.row.layout_serial if with_layout else None
            names = [] if layout is None else [layout_name(layout)]
            names += [memory_name(each.serial) for each in some if each.since > known]
            fds = await self._keeper.get(names) if names else []
            if entry.contents is not contents:
                close_soon(fds)
                raise KeeperFailed(f"the memory of arena {entry.arena.name} was lost while it was taken")
            return Portion(entry.arena, some, tuple(fds), layout is not None, len(found) > limit)

    async def layout(self, entry: LiveArena, process: ProcessId) -> tuple[Arena, int]:
        async with entry.lock:
            entry.check_holder(process)
            if entry.row.layout_serial is None:
                return entry.arena, -1
            [descriptor] = await self._keeper.get([layout_name(entry.row.layout_serial)])
            return entry.arena, descriptor

    async def keep_state(self, entry: LiveArena, generation: int, process: ProcessId, state: int) -> Arena:
        async with entry.lock:
            entry.check_writer(generation, process)
            size = await self.read_state(entry.arena, check_state, state, generation)
            async with self._held(entry, generation, process, state, size) as (kept, _):
                assert kept is not None
                self._store.keep_state(entry.arena.id, kept)
            if (before := entry.row.state) is not None:
                self._reclaimer.drop(entry.arena, [state_name(before.serial)])
            arena = entry.become(replace(entry.row, state=kept))
        self._catalog.arena_changed.emit("state", arena)
        return arena

    @asynccontextmanager
    async def _held(
        self, entry: LiveArena, generation: int, process: ProcessId, state: int | None, size: int, layout: Layout | None = None
    ) -> AsyncIterator[tuple[KeptState | None, int | None]]:
        """Have the keeper hold the state and the layout, whose serial comes with it, while the caller stores them; after an
        error they are dropped again.

        Both count before the keeper takes them: other requests may run.  One put has both: a comparison with the keepers that
        came between two would drop the first, which nothing names yet.
        """
        catalog, arena, items = self._catalog, entry.arena, list[Item]()
        kept, serial, more, growth = None, None, int(state is not None and entry.row.state is None), 0
        if state is not None:
            catalog.account.check_growth(arena, 0, more, catalog.bounds(arena))
            kept = KeptState(catalog.next_serial(), generation, size)
            items.append(Item(state_name(kept.serial), state, size))
        if layout is not None:
            catalog.account.check_layout(arena, layout.bytes, catalog.bounds(arena))
            serial = catalog.next_serial()
            items.append(Item(layout_name(serial), layout.descriptor, layout.bytes))
            growth = max(0, layout.bytes - arena.layout_bytes)
        catalog.account.move(arena, 0, more)
        catalog.account.count_layout(arena, growth)
        try:
            if items:
                await self._keeper.put(items, entry.newest_name)
            entry.check_writer(generation, process)
            yield kept, serial
        except BaseException:
            catalog.account.move(arena, 0, -more)
            self._reclaimer.drop(arena, [each.name for each in items])
            raise
        finally:
            catalog.account.count_layout(arena, -growth)  # once it is stored, it counts by its arena

    async def state(self, entry: LiveArena) -> tuple[KeptState, int] | None:
        """Return the state with a descriptor.  Its generation is that in the file: in which it was made."""
        async with entry.lock:
            entry.check_there()
            if (kept := entry.row.state) is None:
                return None
            [descriptor] = await self._keeper.get([state_name(kept.serial)])
            try:
                generation = await self.read_state(entry.arena, generation_of_state, descriptor)
                return replace(kept, generation=generation), descriptor
            except BaseException:
                os.close(descriptor)
                raise

    async def read_state(self, arena: Arena, read: Callable[..., T], *args: object) -> T:
        """Return what the function returns, called in a thread.  It reads states of the arena's owner."""
        return await self._state_readers.run(self._catalog.account.share(arena), read, *args)

    def roll_back(self, entry: LiveArena) -> None:
        """Return the contents to the last commit; the store has done so already."""
        contents = entry.contents
        before = contents.used_bytes, contents.count
        self._reclaimer.drop(entry.arena, [memory_name(each.serial) for each in contents.fresh])
        contents.roll_back()
        self._catalog.count(entry, *before)


async def _names(allocations: Sequence[Allocation]) -> list[str]:
    """Return the keepers' names of these, while other tasks run: there may be as many as a user may have."""
    names = list[str]()
    for first in range(0, len(allocations), _AT_ONCE):
        names += [memory_name(each.serial) for each in allocations[first : first + _AT_ONCE]]
        await trio.lowlevel.checkpoint()
    return names
