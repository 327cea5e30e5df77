"""The operations of processes on arenas.  Memory is held before a step is stored, and a step is stored before it is reported.

api/dispatch.py has checked permissions before.  Prose: docs/vault.md.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from mpsd.errors import ArenaBusy, BadRequest, KeeperFailed, NoRoom, Stopping
from mpsd.host.descriptors import close_all, close_apart, close_soon
from mpsd.model.arena import Access, Allocation, Arena, ArenaSpec, KeptState, Portion
from mpsd.model.device_names import find_device
from mpsd.model.process import ProcessId
from mpsd.vault.allocations import Allocations
from mpsd.vault.catalog import Catalog
from mpsd.vault.fencing import ArenaHolders
from mpsd.vault.live_arena import LiveArena
from mpsd.vault.reclaim import Reclaimer
from mpsd.vault.rules import windows
from mpsd.vault.rules.contents import Contents
from mpsd.vault.rules.eviction import plan_eviction, why_not_more
from mpsd.vault.rules.spec import check_fits, check_spec
from mpsd.vault.rules.usage import are_of_one_user
from mpsd.vault.store import Row, VaultStore
from mpsd.vault.writers import Writers

LeaseOf = Callable[[ProcessId], int | None]
T = TypeVar("T")
_READY_SECONDS = 15.0  # after a start mpsd compares the keeper's contents


class Arenas:
    """Guards that a process that adopts an arena sees the last commit and nothing else.

    `process` is the caller, whose privilege dispatch.py has checked; these methods check that it is the writer, and of this
    generation: StaleGeneration, ArenaBusy.  Changes are durable when a method returns; each may raise MpsdError.  A method owns
    the descriptors that it takes, even if it raises; the caller owns those that it gets.

    changed: each event of an arena, after it is stored, with the name of the event.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: VaultStore,
        allocations: Allocations,
        writers: Writers,
        holders: ArenaHolders,
        reclaimer: Reclaimer,
        lease_of: LeaseOf,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._allocations = allocations
        self._writers = writers
        self._holders = holders
        self._reclaimer = reclaimer
        self._lease_of = lease_of
        self.ready = trio.Event()  # the keeper was compared, or does not answer
        self.is_over = False  # mpsd quits, and keeps no arenas
        self.changed = catalog.arena_changed

    # -- views -----------------------------------------------------------------------------------------------------------

    def arenas(self) -> Sequence[Arena]:
        return [entry.arena for entry in self._catalog.by_id.values()]

    def find(self, name: str) -> Arena:
        return self._catalog.find(name).arena

    def find_id(self, arena_id: int) -> Arena:
        return self._catalog.find_id(arena_id).arena

    def share(self, arena: Arena) -> int:
        """Return whose quotas it counts in, as a number: a uid, or minus the pid namespace of a container."""
        return self._catalog.account.share(arena)

    # -- create, change, remove ------------------------------------------------------------------------------------------

    async def create(
        self,
        spec: ArenaSpec,
        uid: int,
        gid: int,
        process: ProcessId | None,
        pid_namespace: int | None = None,
        uids: Sequence[tuple[int, int]] | None = None,
    ) -> Arena:
        """Create an arena.  process: its lease is charged.  uids: ranges of those that its maker can take; None: any.

        Raises NoRoom, NoSuchDevice, BadRequest (the name is taken).
        """
        await self._begin()
        catalog = self._catalog
        device = find_device(catalog.parts.devices(), spec.gpu)
        gpu = device.uuid
        capacity, window = check_spec(spec)
        check_fits(spec.name, capacity, device)
        if (other := catalog.by_name.get(spec.name)) is not None:
            owner = other.arena.owner_uid
            whose = "" if owner == uid else f": it belongs to user {owner}, and an operator can remove it"
            raise BadRequest(f"an arena has the name {spec.name} already{whose}")
        now = catalog.parts.clock()
        lease_id = None if process is None else self._lease_of(process)
        is_of_owner = uids is not None and uid not in catalog.settings.operators and are_of_one_user(uids)
        arena = Arena(
            0, spec.name, uid, gid, spec.mode, gpu, 0, window, capacity, now,
            lease_id=lease_id, ttl_seconds=spec.ttl_seconds, unheld_since=now, pid_namespace=pid_namespace,
            is_of_owner=is_of_owner,
        )  # fmt: skip
        bounds = catalog.bounds(arena)
        catalog.account.check_number(arena, bounds)
        catalog.account.check_arena(arena, bounds)
        arena = replace(arena, base=catalog.place(window))
        arena = catalog.add(LiveArena(Row(replace(arena, id=self._store.add(arena))), Contents()))
        catalog.tell("created", arena, capacity_bytes=capacity)
        return arena

    async def change(self, arena_id: int, capacity_bytes: int | None, mode: int | None, ttl_seconds: float | None) -> Arena:
        """Change the values that are not None.  Raises NoRoom."""
        await self._begin()
        entry = self._catalog.find_id(arena_id)
        arena = entry.arena
        if mode is not None:
            arena = replace(arena, mode=mode)
        if ttl_seconds is not None:
            arena = replace(arena, ttl_seconds=ttl_seconds or None)
        if capacity_bytes is not None:
            arena = self._resized(entry, arena, capacity_bytes)
        row = replace(entry.row, arena=arena)
        self._store.change(row)
        return self._catalog.change(entry, row)

    def _resized(self, entry: LiveArena, arena: Arena, capacity_bytes: int) -> Arena:
        """Resize the arena.  Its window grows if the next addresses are free; it never moves.  Raise NoRoom or BadRequest."""
        capacity, window = check_spec(ArenaSpec(arena.name, arena.gpu, capacity_bytes, max(capacity_bytes, arena.window_bytes)))
        check_fits(arena.name, capacity, next((d for d in self._catalog.parts.devices() if d.uuid == arena.gpu), None))
        if capacity < arena.used_bytes:
            raise BadRequest(f"arena {arena.name} holds {arena.used_bytes} bytes, more than {capacity}")
        wanted = replace(arena, capacity_bytes=capacity, window_bytes=window)
        bounds = self._catalog.bounds(arena)
        self._catalog.account.check_arena(wanted, bounds)
        self._catalog.account.check_addresses(arena, window - arena.window_bytes, bounds)
        if not windows.may_end_at(self._catalog.windows(arena), arena.base, arena.base + window):
            raise NoRoom(f"the window of {arena.name} cannot grow to {window} bytes: another one lies behind it")
        return wanted

    async def remove(self, arena_id: int) -> Arena:
        await self._begin()
        arena = self._take_away(self._catalog.find_id(arena_id), "removed")
        await self._reclaimer.settled(arena)
        return arena

    async def make_room(self, gpu: str, wanted_bytes: int, uid: int, *, is_operator: bool) -> tuple[list[Arena], str]:
        """Evict arenas that no process holds, as the policy allows this caller.  Return them, and why they free too little."""
        await self._begin()
        catalog = self._catalog
        uuid = find_device(catalog.parts.devices(), gpu).uuid
        settings = replace(catalog.settings, evicts_all=is_operator or catalog.settings.evicts_all)
        chosen = plan_eviction(self.arenas(), uuid, wanted_bytes, uid, catalog.parts.clock(), settings)
        gone = [self._take_away(catalog.by_id[arena.id], "evicted") for arena in chosen if not catalog.by_id[arena.id].queue]
        for arena in gone:
            await self._reclaimer.settled(arena)
        is_enough = sum(arena.used_bytes for arena in gone) >= wanted_bytes
        return gone, "" if is_enough else why_not_more(self.arenas(), uuid, uid, settings, sees_all=is_operator)

    def expire(self, arena_id: int) -> None:
        """Remove an arena that has expired and is not held."""
        self._take_away(self._catalog.find_id(arena_id), "expired")

    def _take_away(self, entry: LiveArena, what: str) -> Arena:
        """Remove the arena.  Raise ArenaBusy."""
        arena = entry.arena
        if arena.is_held:
            pids = [each.pid for each in (arena.writer, *arena.readers) if each is not None]
            raise ArenaBusy(f"arena {arena.name} is open in pid {', '.join(map(str, pids))}")
        names = entry.names()
        self._store.remove(arena.id)
        self._catalog.remove(entry)
        self._reclaimer.drop(arena, names)
        self._reclaimer.forget([arena.id])
        self._catalog.tell(what, arena, freed_bytes=arena.used_bytes)
        return arena

    # -- holders ---------------------------------------------------------------------------------------------------------

    async def open(
        self,
        arena_id: int,
        access: Access,
        process: ProcessId,
        wait_seconds: float,
        check: Callable[[], None] = lambda: None,
        uid: int | None = None,
    ) -> Arena:
        """Open the arena.  The writer may open it again.  If another process writes, wait until that one is fenced.

        check: raises if the process may not open it, also by a mode that was changed in the meantime.  uid: with which it
        connected; None: that of its program now.  Raises ArenaBusy, ArenaSealed.
        """
        await self._begin()
        entry = self._catalog.find_id(arena_id)
        before = int(entry.is_held_by(process))
        arena = await self._writers.open(entry, access, process, wait_seconds, check, uid)
        entry.openings[process] = entry.openings.get(process, before) + 1
        return arena

    def openings(self, arena_id: int, process: ProcessId) -> int:
        """Return how often the process has opened the arena while holding it, as far as this mpsd knows."""
        return self._catalog.find_id(arena_id).openings.get(process, 0)

    async def close(self, arena_id: int, process: ProcessId, openings: int | None = None) -> Arena:
        """Release the arena.  Memory that its writer did not commit is dropped.

        openings: do nothing unless the process has opened the arena that many times.
        """
        await self._begin()
        arena = await self._writers.close(self._catalog.find_id(arena_id), process, openings)
        await self._reclaimer.settled(arena)
        return arena

    async def ended(self, process: ProcessId, seconds: float) -> None:
        """Release the arenas of a process that has ended, `seconds` ago, and whose work on the GPU has ended too."""
        await self._writers.ended(process, seconds)

    async def seal(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        """Make the arena unchangeable; its writer becomes a reader."""
        await self._begin()
        arena = await self._writers.seal(self._catalog.find_id(arena_id), generation, process)
        await self._reclaimer.settled(arena)
        return arena

    # -- for services: not methods of the socket ---------------------------------------------------------------------------

    def promote(self, arena_id: int, process: ProcessId, fenced: ProcessId | None) -> Arena:
        """Make a reader, or the writer, the writer of the next generation, at the last commit.

        Never waits; the caller answers the process, and then calls `tell_promoted`.

        fenced: the writer before; the caller guarantees that it can write no more.  It no longer holds this arena, and can open
        none while it lives.  Raise ArenaBusy if another process writes, ArenaSealed, NoSuchArena, NotAllowed (the process does
        not hold the arena, or is expelled itself) or BadRequest (it has ended).
        """
        self._check_begun()
        return self._writers.promote(self._catalog.find_id(arena_id), process, fenced)

    def tell_promoted(self, arena: Arena) -> None:
        self._writers.tell_promoted(arena)

    def step_down(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        """Make the writer a reader, and roll back what it did not commit.  Raise StaleGeneration or NoSuchArena."""
        self._check_begun()
        return self._writers.step_down(self._catalog.find_id(arena_id), generation, process)

    def replace(
        self, arena_id: int, by_id: int, generation: int, process: ProcessId, fenced: ProcessId | None
    ) -> tuple[Arena, Arena]:  # fmt: skip
        """Let the arena `by_id`, which the process writes in this generation, have the name of another one.

        Return it, and the other one under its new name, which is sealed and expires.  fenced: the writer of that one, which was
        killed; its work may still write that one's memory.  Raise StaleGeneration, NoSuchArena, ArenaSealed, or ArenaBusy for
        another writer."""
        self._check_begun()
        old, new = self._catalog.find_id(arena_id), self._catalog.find_id(by_id)
        return self._writers.replace(old, new, generation, process, fenced)

    def hurry(self, process: ProcessId) -> None:
        """Release what mpsd holds of the process as soon as it ends: a request waits for its end."""
        self._holders.hurry(process)

    def uid_of(self, process: ProcessId) -> int:
        """Return the uid with which a holder connected.  Raise BadRequest if the process has no arena open."""
        return self._holders.uid_of(process)

    # -- contents --------------------------------------------------------------------------------------------------------

    async def put(
        self, arena_id: int, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> Arena:
        """Add memory; an uncommitted allocation of the same offset and size is replaced.  Raises NoRoom, BadRequest."""
        async with _owned(fds):
            await self._begin()
            return await self._allocations.put(self._catalog.find_id(arena_id), generation, process, allocations, fds)

    async def drop(self, arena_id: int, generation: int, process: ProcessId, offsets: Sequence[int]) -> Arena:
        """Drop allocations: uncommitted ones at once, the others with the next commit."""
        await self._begin()
        return await self._allocations.drop(self._catalog.find_id(arena_id), generation, process, offsets)

    async def commit(
        self, arena_id: int, generation: int, process: ProcessId, layout: int | None, state: int | None = None
    ) -> Arena:
        """Commit pending puts and drops, the layout and the forward state atomically.

        layout: a descriptor to read; None: unchanged.  state: likewise, of this generation or an earlier one.
        """
        async with _owned(_given(layout), close_soon), _owned(_given(state)):  # nothing bounds the memory of a layout's file
            await self._begin()
            return await self._allocations.commit(self._catalog.find_id(arena_id), generation, process, layout, state)

    async def take(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        limit: int,
        known: int = 0,
        *,
        with_layout: bool = False,
    ) -> Portion:
        """Return committed allocations beyond the offset `after`, by offset, with a descriptor of each.

        Raises NotAllowed unless the process holds the arena, as `layout` and `state` do.
        """
        await self._begin()
        return await self._allocations.take(self._catalog.find_id(arena_id), process, after, limit, known, with_layout)

    async def layout(self, arena_id: int, process: ProcessId) -> tuple[Arena, int]:
        """Return a sealed memory file; -1 before the first layout."""
        await self._begin()
        return await self._allocations.layout(self._catalog.find_id(arena_id), process)

    async def keep_state(self, arena_id: int, generation: int, process: ProcessId, state: int) -> Arena:
        """Replace the forward state by this one (a descriptor), of this generation.  Raises BadRequest, NoRoom."""
        async with _owned((state,)):
            await self._begin()
            return await self._allocations.keep_state(self._catalog.find_id(arena_id), generation, process, state)

    async def state(self, arena_id: int, process: ProcessId) -> tuple[KeptState, int] | None:
        """Return the forward state with a descriptor; None if none is kept."""
        await self._begin()
        entry = self._catalog.find_id(arena_id)
        entry.check_holder(process)
        return await self._allocations.state(entry)

    async def state_descriptor(self, arena_id: int) -> int:
        """Return a descriptor of the state, owned by the daemon; -1 without a state.  Raise NoSuchArena or KeeperFailed."""
        await self._begin()
        found = await self._allocations.state(self._catalog.find_id(arena_id))
        return -1 if found is None else found[1]

    async def read_state(self, arena: Arena, read: Callable[..., T], *args: object) -> T:
        """Return what the function returns, called in a thread.

        It reads states of the arena's owner, who can have had their pages written to swap: each then takes milliseconds.
        """
        return await self._allocations.read_state(arena, read, *args)

    async def _begin(self) -> None:
        """Wait until the vault is ready.  Raise KeeperFailed or Stopping."""
        with trio.move_on_after(0 if self.is_over else _READY_SECONDS):
            await self.ready.wait()
        self._check_begun()

    def _check_begun(self) -> None:
        if self.is_over:
            raise Stopping("mpsd is quitting, and its vault has ended")
        if not self.ready.is_set():
            raise KeeperFailed("the vault's keeper does not answer yet")


def _given(descriptor: int | None) -> list[int]:
    return [] if descriptor is None else [descriptor]


@asynccontextmanager
async def _owned(descriptors: Collection[int], close: Callable[[Collection[int]], None] = close_all) -> AsyncIterator[None]:
    """Close the descriptors at the end, also after an error.  Refused ones may be of any kind, and slow to close."""
    try:
        yield
    except BaseException:
        await close_apart(partial(close_all, descriptors))
        raise
    close(descriptors)
