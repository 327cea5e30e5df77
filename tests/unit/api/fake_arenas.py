"""The vault in memory: arenas that consist of the descriptors put into them."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio
from msgspec.structs import replace

from mpsd.errors import (
    ArenaBusy,
    ArenaSealed,
    BadRequest,
    MpsdError,
    NoRoom,
    NoSuchArena,
    NotAllowed,
    StaleGeneration,
)
from mpsd.model.arena import FIRST_ADDRESS, GRANULE, Access, Allocation, Arena, ArenaSpec, KeptState, Portion
from mpsd.model.process import ProcessId

NOW = 1_700_000_000.0
MOST_BYTES = 64 << 30  # of all arenas together


@dataclass
class FakeMemory:
    """The memory of one arena: descriptors by offset, with those that the next commit adds and drops."""

    held: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset: bytes, descriptor
    fresh: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    layout: bytes | None = None
    state: tuple[int, int] | None = None  # its generation, and the descriptor

    def keep(self, state: int, generation: int) -> None:
        self.forget_state()
        self.state = generation, state

    def forget_state(self) -> None:
        if self.state is not None:
            os.close(self.state[1])
            self.state = None

    def close(self, offset: int) -> None:
        os.close(self.held.pop(offset)[1])
        self.fresh.discard(offset)
        self.dropped.discard(offset)

    @property
    def used_bytes(self) -> int:
        return sum(size for size, _ in self.held.values())

    @property
    def committed(self) -> list[int]:
        return sorted(set(self.held) - self.fresh)


@dataclass
class FakeArenas:
    publish: Callable[[str, Mapping[str, Any]], None]
    made: dict[int, Arena] = field(default_factory=dict)
    memory: dict[int, FakeMemory] = field(default_factory=dict)
    opened: Counter[tuple[int, ProcessId]] = field(default_factory=Counter)
    charged: dict[ProcessId, int | None] = field(default_factory=dict)
    waiting: int = 0  # for a process to be fenced
    _changed: trio.Event = field(default_factory=trio.Event)
    _next_id: int = 1

    def arenas(self) -> list[Arena]:
        return list(self.made.values())

    def find(self, name: str) -> Arena:
        for arena in self.made.values():
            if arena.name == name:
                return arena
        raise NoSuchArena(f"the vault has no {name}")

    def find_id(self, arena_id: int) -> Arena:
        if arena_id not in self.made:
            raise NoSuchArena(f"the vault has no number {arena_id}")
        return self.made[arena_id]

    def _keep(self, arena: Arena, word: str, **facts: object) -> Arena:
        memory = self.memory[arena.id]
        digest = hashlib.sha256(memory.layout).hexdigest() if memory.layout is not None else ""
        self.made[arena.id] = arena = replace(
            arena, used_bytes=memory.used_bytes, allocations=len(memory.committed), layout_hash=digest,
            layout_bytes=len(memory.layout or b""), unheld_since=None if arena.is_held else NOW,
        )  # fmt: skip
        if word:
            whose = {"owner_uid": arena.owner_uid, "owner_gid": arena.owner_gid, "mode": arena.mode}
            self.publish(f"arena.{word}", {"id": arena.id, "name": arena.name, "gpu": arena.gpu, **whose, **facts})
        return arena

    async def create(
        self,
        spec: ArenaSpec,
        uid: int,
        gid: int,
        process: ProcessId | None,
        pid_namespace: int | None = None,
        uids: Sequence[tuple[int, int]] | None = None,
    ) -> Arena:
        if any(arena.name == spec.name for arena in self.made.values()):
            raise BadRequest(f"an arena has the name {spec.name} already")
        taken = sum(arena.capacity_bytes for arena in self.made.values())
        if taken + spec.capacity_bytes > MOST_BYTES:
            raise NoRoom(f"{spec.capacity_bytes} bytes do not fit beside {taken}")
        number, self._next_id = self._next_id, self._next_id + 1
        base = FIRST_ADDRESS + (number << 40)
        window_bytes = spec.window_bytes or 2 * spec.capacity_bytes
        self.memory[number] = FakeMemory()
        arena = Arena(
            number, spec.name, uid, gid, spec.mode, spec.gpu, base, window_bytes, spec.capacity_bytes, NOW,
            ttl_seconds=spec.ttl_seconds, unheld_since=NOW, pid_namespace=pid_namespace,
        )  # fmt: skip
        return self._keep(arena, "created")

    async def open(
        self, arena_id: int, access: Access, process: ProcessId, wait_seconds: float, check: Callable[[], None] = lambda: None,
        uid: int | None = None,
    ) -> Arena:
        self.opened[arena_id, process] += 1
        self.charged[process] = uid
        with trio.move_on_after(wait_seconds):
            while access is Access.WRITE and self.find_id(arena_id).writer not in (None, process):
                self.waiting += 1
                try:
                    await self._changed.wait()
                finally:
                    self.waiting -= 1
        check()
        arena = self.find_id(arena_id)
        if access is Access.READ:
            readers = tuple(dict.fromkeys((*arena.readers, process)))
            return self._keep(replace(arena, readers=readers), "opened", access=access, generation=arena.generation)
        if arena.is_sealed:
            raise ArenaSealed(f"arena {arena.name} is sealed")
        if arena.writer not in (None, process):
            raise ArenaBusy(f"arena {arena.name} is written by pid {arena.writer.pid}")
        if arena.writer == process:
            return arena
        generation = arena.generation + 1
        return self._keep(replace(arena, writer=process, generation=generation), "opened", access=access, generation=generation)

    def fence(self, arena_id: int) -> None:
        """Record the end of the arena's writer and of all its work."""
        memory = self.memory[arena_id]
        for offset in list(memory.fresh):
            memory.close(offset)
        memory.dropped.clear()
        self._keep(replace(self.find_id(arena_id), writer=None), "fenced", seconds=0.2)
        self._changed.set()
        self._changed = trio.Event()

    def _written(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        arena = self.find_id(arena_id)
        if arena.is_sealed:
            raise ArenaSealed(f"arena {arena.name} is sealed")
        if (arena.writer, arena.generation) != (process, generation):
            raise StaleGeneration(f"arena {arena.name} is at generation {arena.generation}; you said {generation}")
        return arena

    def _held(self, arena_id: int, process: ProcessId) -> Arena:
        arena = self.find_id(arena_id)
        if process not in (arena.writer, *arena.readers):
            raise NotAllowed(f"pid {process.pid} does not hold arena {arena.name}")
        return arena

    async def put(
        self, arena_id: int, generation: int, process: ProcessId, allocations: Sequence[Allocation], fds: Sequence[int]
    ) -> Arena:
        await trio.lowlevel.checkpoint()
        left = list(fds)
        try:
            arena, memory = self._written(arena_id, generation, process), self.memory[arena_id]
            for each in allocations:
                if each.offset in memory.held and each.offset not in memory.fresh:
                    raise BadRequest(f"offset {each.offset} is taken")
                if each.offset + each.bytes > arena.window_bytes:
                    raise BadRequest(f"offset {each.offset} is outside of the window")
                if memory.used_bytes + each.bytes > arena.capacity_bytes:
                    raise NoRoom(f"arena {arena.name} may hold {arena.capacity_bytes} bytes")
                if each.offset in memory.held:
                    memory.close(each.offset)
                memory.held[each.offset] = (each.bytes, left.pop(0))
                memory.fresh.add(each.offset)
            return self._keep(arena, "")
        finally:
            for fd in left:
                os.close(fd)

    async def drop(self, arena_id: int, generation: int, process: ProcessId, offsets: Sequence[int]) -> Arena:
        arena, memory = self._written(arena_id, generation, process), self.memory[arena_id]
        for offset in offsets:
            if offset not in memory.held:
                raise BadRequest(f"nothing is at offset {offset}")
            if offset in memory.fresh:
                memory.close(offset)
            else:
                memory.dropped.add(offset)
        return self._keep(arena, "")

    async def commit(
        self, arena_id: int, generation: int, process: ProcessId, layout: int | None, state: int | None = None
    ) -> Arena:
        await trio.lowlevel.checkpoint()
        try:
            arena, memory = self._written(arena_id, generation, process), self.memory[arena_id]
            if layout is not None:
                memory.layout = os.pread(layout, os.fstat(layout).st_size, 0)
            if state is not None:
                memory.keep(os.dup(state), generation)
                arena = replace(arena, state_serial=arena.state_serial + 1)
        finally:
            for each in filter(None, (layout, state)):
                os.close(each)
        for offset in list(memory.dropped):
            memory.close(offset)
        memory.fresh.clear()
        return self._keep(replace(arena, commit=arena.commit + 1), "committed", generation=generation)

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
        memory = self.memory[self._held(arena_id, process).id]
        offsets = [offset for offset in memory.committed if after is None or offset > after]
        found = [Allocation(offset, memory.held[offset][0], 1, is_committed=True, since=1) for offset in offsets[:limit]]
        arena, layout = await self.layout(arena_id, process) if with_layout else (self.find_id(arena_id), -1)
        fds = [layout] if layout >= 0 else []
        fds += [os.dup(memory.held[each.offset][1]) for each in found if each.since > known]
        return Portion(arena, tuple(found), tuple(fds), layout >= 0, len(offsets) > limit)

    def openings(self, arena_id: int, process: ProcessId) -> int:
        return self.opened[arena_id, process]

    async def layout(self, arena_id: int, process: ProcessId) -> tuple[Arena, int]:
        arena = self._held(arena_id, process)
        layout = self.memory[arena_id].layout
        if layout is None:
            return arena, -1
        made = os.memfd_create("layout", os.MFD_CLOEXEC)
        os.write(made, layout)
        return arena, made

    async def keep_state(self, arena_id: int, generation: int, process: ProcessId, state: int) -> Arena:
        await trio.lowlevel.checkpoint()
        try:
            arena = self._written(arena_id, generation, process)
        except MpsdError:
            os.close(state)
            raise
        memory = self.memory[arena_id]
        memory.keep(state, generation)
        return self._keep(replace(arena, state_serial=arena.state_serial + 1), "")

    async def state(self, arena_id: int, process: ProcessId) -> tuple[KeptState, int] | None:
        arena, kept = self._held(arena_id, process), self.memory[arena_id].state
        return None if kept is None else (KeptState(arena.state_serial, kept[0], 0), os.dup(kept[1]))

    async def close(self, arena_id: int, process: ProcessId, openings: int | None = None) -> Arena:
        arena = self._held(arena_id, process)
        if openings not in (None, self.opened[arena_id, process]):
            return arena
        if arena.writer == process:
            self.fence(arena_id)
        readers = tuple(reader for reader in arena.readers if reader != process)
        return self._keep(replace(self.find_id(arena_id), readers=readers), "closed")

    async def seal(self, arena_id: int, generation: int, process: ProcessId) -> Arena:
        arena = self._written(arena_id, generation, process)
        return self._keep(replace(arena, writer=None, readers=(*arena.readers, process), is_sealed=True), "sealed")

    async def change(self, arena_id: int, capacity_bytes: int | None, mode: int | None, ttl_seconds: float | None) -> Arena:
        arena = self.find_id(arena_id)
        if capacity_bytes is not None:
            arena = replace(arena, capacity_bytes=capacity_bytes)
        if mode is not None:
            arena = replace(arena, mode=mode)
        if ttl_seconds is not None:
            arena = replace(arena, ttl_seconds=ttl_seconds or None)
        return self._keep(arena, "")

    async def remove(self, arena_id: int) -> Arena:
        arena = self.find_id(arena_id)
        if arena.is_held:
            raise ArenaBusy(f"arena {arena.name} is held")
        return self._take_away(arena, "removed")

    async def make_room(self, gpu: str, wanted_bytes: int, uid: int, *, is_operator: bool) -> tuple[list[Arena], str]:
        evicted: list[Arena] = []
        for arena in self.arenas():
            if sum(each.used_bytes for each in evicted) >= wanted_bytes:
                break
            if arena.gpu == gpu and not arena.is_held and arena.used_bytes and (is_operator or uid == arena.owner_uid):
                evicted.append(self._take_away(arena, "evicted"))
        is_enough = sum(each.used_bytes for each in evicted) >= wanted_bytes
        return evicted, "" if is_enough else "mpsd evicts no arena: vault.eviction is off"

    def _take_away(self, arena: Arena, word: str) -> Arena:
        self._keep(arena, word)
        self.empty(arena.id)
        del self.made[arena.id]
        return arena

    def empty(self, arena_id: int) -> None:
        memory = self.memory.pop(arena_id)
        for offset in list(memory.held):
            memory.close(offset)
        memory.forget_state()

    def close_all(self) -> None:
        for arena_id in list(self.memory):
            self.empty(arena_id)


def furnish(arenas: FakeArenas, gpu: str) -> None:
    """Make two arenas of user 1000: arena 1, "weights", readable by group 1100, written by client 586, with one allocation and
    a layout; arena 2, "cache", which no process holds, and which user 1000 alone may see."""
    writer = ProcessId(586, 5860)
    for number, (name, mode) in enumerate((("weights", 0o640), ("cache", 0o600)), 1):
        memory = arenas.memory[number] = FakeMemory()
        memory.held[0] = (GRANULE, os.memfd_create(name, os.MFD_CLOEXEC))
        memory.layout = b"{}" if number == 1 else None
        base, size = FIRST_ADDRESS + (number << 40), 8 << 30
        arena = Arena(number, name, 1000, 1100, mode, gpu, base, 2 * size, size, NOW, commit=1, generation=7)
        arenas._keep(replace(arena, writer=writer if number == 1 else None), "")
    arenas._next_id = 3
