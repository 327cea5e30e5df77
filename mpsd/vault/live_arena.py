"""One arena while mpsd runs: its stored row, its contents, and the requests that wait for it."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.errors import ArenaSealed, NoSuchArena, NotAllowed, StaleGeneration
from mpsd.keeper.messages import KeeperEntry as Held
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.notify import Changed
from mpsd.vault.rules.contents import Contents
from mpsd.vault.store import Row


def memory_name(serial: int) -> str:
    """Return the keeper's name of an allocation; all have one length, so that the newest is listed last."""
    return f"m.{serial:012x}"


def layout_name(serial: int) -> str:
    return f"l.{serial:012x}"


def state_name(serial: int) -> str:
    return f"s.{serial:012x}"


def serial_of(name: str) -> int:
    """Return the serial in a name; 0 for another name."""
    kind, dot, number = name.partition(".")
    try:
        return int(number, 16) if kind in ("m", "l", "s") and dot else 0
    except ValueError:
        return 0


class LiveArena(Struct, eq=False):
    """Guards one arena.

    Each task that changes the contents holds `lock`, also while it waits.  The death of a keeper changes them without the lock,
    so `check_writer` is repeated after each wait.
    """

    row: Row
    contents: Contents
    lock: trio.Lock = field(default_factory=trio.Lock)
    queue: deque[object] = field(default_factory=deque)  # requests that wait to write, in order
    openings: dict[ProcessId, int] = field(default_factory=dict)  # how often each holder has opened it with this mpsd
    is_removed: bool = False
    changed: Changed = field(default_factory=Changed)

    @property
    def arena(self) -> Arena:
        return self.row.arena

    def with_facts(self, **facts: Any) -> Row:
        """Return the row with these facts of the arena changed."""
        return replace(self.row, arena=replace(self.arena, **facts))

    def become(self, row: Row) -> Arena:
        """Take over `row`, which is stored."""
        serial, given = (0, 0) if row.state is None else (row.state.serial, row.state.generation)
        contents = self.contents
        counted = replace(
            row.arena, used_bytes=contents.used_bytes, allocations=contents.committed_count, commit=row.commits,
            state_serial=serial, state_generation=given,
        )  # fmt: skip
        self.row = replace(row, arena=counted)
        self.changed.notify()
        return counted

    def held(self) -> list[Held]:
        """Return all entries that the keeper should hold for it."""
        found = [Held(memory_name(each.serial), 1, each.bytes) for each in self.contents.all]
        if (serial := self.row.layout_serial) is not None:
            found.append(Held(layout_name(serial), 1, self.arena.layout_bytes))
        if (state := self.row.state) is not None:
            found.append(Held(state_name(state.serial), 1, state.bytes))
        return found

    @property
    def count(self) -> int:
        """The number of descriptors that count against quotas."""
        return self.contents.count + (self.row.state is not None)

    def names(self) -> list[str]:
        return [each.name for each in self.held()]

    @property
    def newest_name(self) -> str | None:
        """The keeper's name of its newest allocation: further ones should go to the same keeper."""
        newest = self.contents.newest
        return None if newest is None else memory_name(newest.serial)

    # -- permissions -----------------------------------------------------------------------------------------------------

    def check_there(self) -> None:
        if self.is_removed:
            raise NoSuchArena(f"arena {self.arena.name} was removed")

    def check_writer(self, generation: int, process: ProcessId) -> None:
        """Raise NoSuchArena, ArenaSealed or StaleGeneration unless the process is the writer of this generation."""
        self.check_there()
        arena = self.arena
        if arena.writer != process and arena.is_sealed:
            raise ArenaSealed(f"arena {arena.name} is sealed")
        if arena.writer != process or arena.generation != generation:
            writer = f"pid {arena.writer.pid}" if arena.writer else "nobody"
            asked = f"pid {process.pid} is not the writer of generation {generation} of {arena.name}"
            raise StaleGeneration(f"{asked}: it is at {arena.generation}, and written by {writer}")

    def is_held_by(self, process: ProcessId) -> bool:
        return process == self.arena.writer or process in self.arena.readers

    def check_holder(self, process: ProcessId) -> None:
        self.check_there()
        if not self.is_held_by(process):
            raise NotAllowed(f"pid {process.pid} has arena {self.arena.name} not open")


def without(readers: Sequence[ProcessId], process: ProcessId) -> tuple[ProcessId, ...]:
    return tuple(each for each in readers if each != process)
