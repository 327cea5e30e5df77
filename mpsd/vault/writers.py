"""Change the holders and the writer of an arena: by request, by promotion, at their end.

    reader ──open (write), when no other may write──> writer ──close, ended──> none
           ──promote, when the one before is fenced─>
           <────────────────step_down, seal──────────

Whenever a process stops being the writer, what it did not commit is rolled back.  Every change of the writer is one
transaction.  Prose: docs/vault.md, "Fencing".
"""

from collections.abc import Callable
from itertools import chain, count

import trio

from mpsd.errors import ArenaBusy, ArenaSealed, UnusablePath
from mpsd.model.arena import Access, Arena
from mpsd.model.process import ProcessId
from mpsd.vault.allocations import Allocations
from mpsd.vault.catalog import Catalog
from mpsd.vault.fencing import ArenaHolders
from mpsd.vault.live_arena import LiveArena, without
from mpsd.vault.store import VaultStore

_REPLACED_TTL = 60.0  # how long an arena stays that a replica has replaced, once no process has it open


class Writers:
    """Guards that an arena has one writer at a time, and that the next one comes after the last one can write no more.

    is_served: whether an arena has a service with members; then no process becomes its writer by request.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: VaultStore,
        allocations: Allocations,
        holders: ArenaHolders,
        is_served: Callable[[int], bool],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._allocations = allocations
        self._holders = holders
        self._is_served = is_served

    # -- opening and promotion -------------------------------------------------------------------------------------------

    async def open(
        self,
        entry: LiveArena,
        access: Access,
        process: ProcessId,
        wait_seconds: float,
        check: Callable[[], None],
        uid: int | None,
    ) -> Arena:
        if access is Access.WRITE:
            return await self._open_to_write(entry, process, wait_seconds, check, uid)
        check()
        arena = entry.arena
        if process == arena.writer or process in arena.readers:
            return arena
        self._holders.check_reader(arena, process, uid)
        return self._admit(entry, Access.READ, process, uid, readers=(*arena.readers, process), unheld_since=None)

    async def _open_to_write(
        self, entry: LiveArena, process: ProcessId, wait_seconds: float, check: Callable[[], None], uid: int | None
    ) -> Arena:
        """Wait until the process is the writer; requests are served in order.  Raise ArenaBusy, ArenaSealed or NoSuchArena."""
        ticket = object()
        entry.queue.append(ticket)
        try:
            with trio.move_on_after(wait_seconds):
                while True:
                    entry.check_there()
                    check()
                    arena = entry.arena
                    if arena.writer == process:
                        return arena
                    if arena.is_sealed:
                        raise ArenaSealed(f"arena {arena.name} is sealed and cannot be written any more")
                    if self._is_served(arena.id):
                        raise ArenaBusy(f"service {arena.name} has it: its members are promoted by mpsd")
                    if arena.writer is None and entry.queue[0] is ticket:
                        readers = without(arena.readers, process)
                        facts = {"generation": arena.generation + 1, "readers": readers, "unheld_since": None}
                        return self._admit(entry, Access.WRITE, process, uid, writer=process, **facts)
                    if arena.writer is not None and self._catalog.settings.is_prompt:
                        self._holders.release(arena.writer)
                    await entry.changed.wait()
        finally:
            entry.queue.remove(ticket)
            entry.changed.notify()
        raise ArenaBusy(self._why_busy(entry.arena))

    def _why_busy(self, arena: Arena) -> str:
        if arena.writer is None:
            return f"others wait for arena {arena.name} too, and came first"
        does = "has ended, and its work on the GPU not yet" if self._holders.has_ended(arena.writer) else "writes it"
        return f"arena {arena.name} is busy: pid {arena.writer.pid} {does}"

    def _admit(self, entry: LiveArena, access: Access, process: ProcessId, uid: int | None, **facts: object) -> Arena:
        """Enter a holder.  Raise BadRequest for a process that has ended, NotAllowed for one that was expelled, or TooMany."""
        self._holders.add(process, uid)
        row = entry.with_facts(**facts)
        try:
            self._store.hold(row, process, access, self._holders.uid_of(process))
        except UnusablePath:
            self._forget_without_arenas(process)
            raise
        self._catalog.note_open(process, row.arena)
        return self._tell_opened(entry.become(row), access, process)

    def promote(self, entry: LiveArena, process: ProcessId, fenced: ProcessId | None) -> Arena:
        """Make this reader the writer of the next generation; `tell_promoted` has to follow.

        fenced: a process that can write no more; the caller guarantees it.  This takes no lock, since a request of the writer
        before may hold it: a task that waits with the lock calls `check_writer` afterwards.  Raise ArenaBusy, ArenaSealed,
        NotAllowed or BadRequest.
        """
        entry.check_holder(process)
        arena = entry.arena
        if arena.is_sealed:
            raise ArenaSealed(f"arena {arena.name} is sealed and cannot be written any more")
        if arena.writer not in (None, fenced, process):
            raise ArenaBusy(self._why_busy(arena))
        self._holders.check(process)
        if fenced == process:
            fenced = None
        readers = tuple(each for each in arena.readers if each not in (process, fenced))
        row = entry.with_facts(generation=arena.generation + 1, writer=process, readers=readers, unheld_since=None)
        self._store.promote(row, process, fenced)
        self._allocations.roll_back(entry)
        if fenced is not None:
            self._holders.expel(fenced)
            entry.openings.pop(fenced, None)
        return entry.become(row)

    def tell_promoted(self, arena: Arena) -> None:
        """Publish a promotion; separate, because it takes time, and the promoted process waits for its answer."""
        assert arena.writer is not None
        self._tell_opened(arena, Access.WRITE, arena.writer)

    def _tell_opened(self, arena: Arena, access: Access, process: ProcessId) -> Arena:
        self._catalog.tell("opened", arena, access=access.value, generation=arena.generation, pid=process.pid)
        return arena

    # -- closing and end -------------------------------------------------------------------------------------------------

    def step_down(self, entry: LiveArena, generation: int, process: ProcessId) -> Arena:
        """Make the writer a reader.  A repeated request gets the same answer."""
        arena = entry.arena
        if arena.writer is None and arena.generation == generation and process in arena.readers:
            return arena
        entry.check_writer(generation, process)
        return self._tell_opened(self._demote(entry, process), Access.READ, process)

    async def seal(self, entry: LiveArena, generation: int, process: ProcessId) -> Arena:
        async with entry.lock:
            arena = entry.arena
            if arena.is_sealed and arena.generation == generation and process in arena.readers:
                return arena  # a repeated request
            entry.check_writer(generation, process)
            arena = self._demote(entry, process, is_sealed=True)
        self._catalog.tell("sealed", arena, generation=generation)
        return arena

    def replace(
        self, old: LiveArena, new: LiveArena, generation: int, process: ProcessId, fenced: ProcessId | None
    ) -> tuple[Arena, Arena]:  # fmt: skip
        """Give the new arena the name of the old one, which no process can write from now on, and which expires, and a
        generation after those of both.

        Takes no lock, as `promote`.  fenced: the writer of the old one, which was killed.  Raise StaleGeneration unless the
        process is the new one's writer, ArenaSealed, ArenaBusy if the old one has another writer."""
        new.check_writer(generation, process)
        arena = old.arena
        if arena.is_sealed:  # who may write it may not remove it
            raise ArenaSealed(f"arena {arena.name} is sealed, and keeps its name")
        if arena.writer not in (None, fenced):
            raise ArenaBusy(self._why_busy(arena))
        gone = old.with_facts(
            name=self._free_name(f"{arena.name[:100]}.replaced-{arena.id}"), is_sealed=True,
            generation=arena.generation + 1, ttl_seconds=_REPLACED_TTL, writer=None,
            unheld_since=None if arena.readers else self._catalog.parts.clock(),
        )  # fmt: skip
        row = new.with_facts(name=arena.name, generation=max(arena.generation, generation) + 1)
        self._store.replace(gone, row, arena.writer)
        self._allocations.roll_back(old)
        if arena.writer is not None:
            self._holders.expel(arena.writer)
            old.openings.pop(arena.writer, None)
        found = self._catalog.change(old, gone), self._catalog.change(new, row)
        self._catalog.tell("sealed", found[0], generation=found[0].generation)
        return found[1], found[0]

    def _free_name(self, wanted: str) -> str:
        """Return the name, or one that begins so if an arena has it: any user can make one of each name that can be guessed."""
        names = chain([wanted], (f"{wanted}.{number}" for number in count(2)))
        return next(name for name in names if name not in self._catalog.by_name)

    def _demote(self, entry: LiveArena, process: ProcessId, **facts: object) -> Arena:
        """Make the writer a reader, and roll back what it did not commit."""
        row = entry.with_facts(writer=None, readers=(*entry.arena.readers, process), **facts)
        self._store.demote(row, process)
        self._allocations.roll_back(entry)
        return entry.become(row)

    async def close(self, entry: LiveArena, process: ProcessId, openings: int | None) -> Arena:
        """Close the arena for the process; if `openings` is given, only if it has opened the arena as many times."""
        async with entry.lock:
            entry.check_holder(process)
            if openings not in (None, entry.openings.get(process, 0)):
                return entry.arena
            arena = self._let_go(entry, process)
        self._catalog.tell("closed", arena, pid=process.pid)
        return arena

    async def ended(self, process: ProcessId, seconds: float) -> None:
        """Release the arenas of a process that has ended, `seconds` ago, and whose work on the GPU has ended too.

        A busy arena delays no other.  Raise UnusablePath if this is not stored for all of them.
        """
        failed: list[UnusablePath] = []

        async def let_go(entry: LiveArena) -> None:
            try:
                await self._ended_in(entry, process, seconds)
            except UnusablePath as exc:  # raised below: out of a nursery it would come as a group
                failed.append(exc)

        async with trio.open_nursery() as nursery:
            for entry in self._catalog.opened_by(process):
                nursery.start_soon(let_go, entry)
        if failed:
            raise failed[0]
        self._catalog.note_gone(process)

    async def _ended_in(self, entry: LiveArena, process: ProcessId, seconds: float) -> None:
        async with entry.lock:
            was_writer = entry.arena.writer == process
            if not was_writer and process not in entry.arena.readers:
                return  # it had closed it in the meantime
            arena = self._let_go(entry, process)
        self._catalog.tell("fenced", arena, pid=process.pid, was_writer=was_writer, seconds=round(seconds, 3))

    def _let_go(self, entry: LiveArena, process: ProcessId) -> Arena:
        """Remove the holder; if it is the writer, roll back what it did not commit."""
        arena = entry.arena
        is_writer = arena.writer == process
        readers = without(arena.readers, process)
        is_held = bool(readers) or not (is_writer or arena.writer is None)
        since = None if is_held else self._catalog.parts.clock()
        row = entry.with_facts(writer=None if is_writer else arena.writer, readers=readers, unheld_since=since)
        self._store.let_go(row, process, takes_back=is_writer)
        if is_writer:
            self._allocations.roll_back(entry)
        entry.openings.pop(process, None)
        arena = entry.become(row)
        self._catalog.note_closed(process, arena)
        self._forget_without_arenas(process)
        self._catalog.schedule(arena)
        return arena

    def _forget_without_arenas(self, process: ProcessId) -> None:
        """Count the process as a holder no longer if it has no arena open."""
        if not self._catalog.has_open(process):
            self._holders.remove(process)
