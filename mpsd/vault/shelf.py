"""All arenas there are, what they hold together, and where their windows are; what is stored of them is loaded here.

What the keeper holds is compared with it: what is missing there is lost for its whole arena, for half of a model is none.
"""

import time
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import trio

from mpsd.arena import Arena
from mpsd.errors import NoRoom, NoSuchArena
from mpsd.legacy.devices import find_device
from mpsd.model import Device, ProcessId
from mpsd.policy import arena_windows
from mpsd.policy.arena_account import ArenaAccount, Bounds
from mpsd.policy.arena_contents import Contents
from mpsd.policy.arena_eviction import expires_at
from mpsd.policy.arena_settings import VaultSettings
from mpsd.vault.entry import Entry, serial_of
from mpsd.vault.store import Row, VaultStore

log = structlog.get_logger()
_OFTEN = frozenset({"committed", "opened", "closed"})  # what a program does all day
OnTold = Callable[[str, Arena], None]  # what has happened to it, in the words of the events; neither waits nor raises
LeaseBytes = Callable[[int, str], int | None]  # of a lease on a GPU; None: no limit, or no such lease any more


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the vault knows of the rest of the daemon.  clock: seconds since the epoch."""

    devices: Callable[[], Sequence[Device]]
    lease_bytes: LeaseBytes
    publish: Callable[[str, Mapping[str, object]], None]
    clock: Callable[[], float] = time.time


class Shelf:
    """Guards that names, windows and serials are each given once, and that what is counted is what is there."""

    def __init__(self, store: VaultStore, around: Surroundings, settings: VaultSettings) -> None:
        """Raises UnusablePath."""
        self.settings = settings
        self.around = around
        self.account = ArenaAccount()
        self.by_id: dict[int, Entry] = {}
        self.by_name: dict[str, Entry] = {}
        self.ends: dict[int, float] = {}  # when arenas are over that nobody has open; whoever is opened stays in it until then
        self.schedule_changed = trio.Event()  # somebody's time may be over earlier than was thought
        self._windows: list[arena_windows.Window] = []  # of all, in order
        self._opened: dict[ProcessId, dict[int, None]] = {}  # arenas that a process has open, and some that it had, by id
        self.on_told: list[OnTold] = []
        self._store = store
        self._serial = store.last_serial()
        for row in store.arenas():
            self._load(row)

    def _load(self, row: Row) -> None:
        if not row.arena.is_held and row.arena.unheld_since is None:  # its holders are of an earlier boot
            row = replace(row, arena=replace(row.arena, unheld_since=self.around.clock()))
            self._store.change(row)
        known = self._store.allocations(row)
        contents = Contents(
            (each for each in known if each.is_committed),
            (each for each in known if not each.is_committed),
            (each.offset for each in known if each.is_dropped),
        )
        self.add(Entry(row, contents))

    # -- what is there ---------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Entry:
        if (entry := self.by_name.get(name)) is None:
            raise NoSuchArena(f"no arena is called {name}")
        return entry

    def find_id(self, arena_id: int) -> Entry:
        if (entry := self.by_id.get(arena_id)) is None:
            raise NoSuchArena(f"no arena has id {arena_id}")
        return entry

    def opened_by(self, process: ProcessId) -> list[Entry]:
        """All that it has open, and perhaps some that it had."""
        return [self.by_id[arena_id] for arena_id in self._opened.get(process, ()) if arena_id in self.by_id]

    def has_open(self, process: ProcessId) -> bool:
        """Any."""
        ids = self._opened.get(process, {})
        while ids:
            entry = self.by_id.get(next(reversed(ids)))
            if entry is not None and process in (entry.arena.writer, *entry.arena.readers):
                return True
            ids.popitem()
        self._opened.pop(process, None)
        return False

    def bounds(self, arena: Arena) -> Bounds:
        """Raises NoSuchDevice for one whose GPU is not here any more."""
        gpu = find_device(self.around.devices(), arena.gpu)
        lease = None if arena.lease_id is None else self.around.lease_bytes(arena.lease_id, arena.gpu)
        return Bounds(self.settings, gpu.total_bytes, lease)

    def windows(self, but: Arena) -> list[arena_windows.Window]:
        """Of all others."""
        return [window for window in self._windows if window != _window(but)]

    def place(self, size: int) -> int:
        """Raises NoRoom."""
        base = arena_windows.place(self._windows, size)
        if base is None:
            raise NoRoom(f"no {size} bytes of addresses in a row are free for another window")
        return base

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    # -- what changes ----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> Arena:
        arena = entry.become(entry.row)
        self.by_id[arena.id] = self.by_name[arena.name] = entry
        self.account.add(arena)
        self.account.move(arena, arena.used_bytes, entry.count)
        insort(self._windows, _window(arena))
        for process in filter(None, (arena.writer, *arena.readers)):
            self.note_open(process, arena)
        self.schedule(arena)
        return arena

    def note_open(self, process: ProcessId, arena: Arena) -> None:
        """It is about to have it open."""
        self._opened.setdefault(process, {})[arena.id] = None

    def note_gone(self, process: ProcessId) -> None:
        """It has nothing open, and opens nothing any more."""
        self._opened.pop(process, None)

    def remove(self, entry: Entry) -> None:
        arena = entry.arena
        entry.is_removed = True
        del self.by_id[arena.id], self.by_name[arena.name]
        self.account.move(arena, -entry.contents.used_bytes, -entry.count)
        self.account.remove(arena)
        self._windows.remove(_window(arena))
        self.ends.pop(arena.id, None)
        entry.notify()

    def change(self, entry: Entry, row: Row) -> Arena:
        """`row` is stored."""
        old = entry.arena
        arena = entry.become(row)
        self.account.change(old, arena)
        if _window(old) != _window(arena):
            self._windows.remove(_window(old))
            insort(self._windows, _window(arena))
        self.schedule(arena)
        return arena

    def schedule(self, arena: Arena) -> None:
        """Its time may be over at another moment than was thought."""
        if (end := expires_at(arena)) is None:
            self.ends.pop(arena.id, None)
        else:
            self.ends[arena.id] = end
            self.schedule_changed.set()

    def count(self, entry: Entry, bytes_before: int, count_before: int) -> None:
        """What is in it has changed since it was so much."""
        contents = entry.contents
        self.account.move(entry.arena, contents.used_bytes - bytes_before, contents.count - count_before)

    def tell(self, what: str, arena: Arena, **facts: object) -> None:
        if what in _OFTEN:
            log.debug("arena.event", what=what, arena=arena.name, owner_uid=arena.owner_uid, **facts)
        else:
            log.info("arena.event", what=what, arena=arena.name, owner_uid=arena.owner_uid, **facts)
        whose = {"id": arena.id, "name": arena.name, "owner_uid": arena.owner_uid, "owner_gid": arena.owner_gid}
        self.around.publish(f"arena.{what}", {**whose, "mode": arena.mode, "gpu": arena.gpu, **facts})
        for each in self.on_told:
            each(what, arena)

    # -- the keeper ------------------------------------------------------------------------------------------------------

    def compare(self, held: Collection[str], is_all: bool) -> list[str]:
        """Names that the keepers should not hold.  What they should and do not is lost, unless one was not asked yet (is_all).

        Raises UnusablePath."""
        wanted: set[str] = set()
        lost = []
        for entry in self.by_id.values():
            names = entry.names()
            if not is_all or all(name in held for name in names):
                wanted.update(names)
            else:
                lost.append(entry)
        self._serial = max(self._serial, max(map(serial_of, held), default=0))
        self._lose(lost)
        return [name for name in held if name not in wanted]

    def _lose(self, entries: Iterable[Entry]) -> None:
        """Their writers, where they live, are told when they ask for something next: their generation is another.  So is the
        commit, for whoever is taking it in pages."""
        rows = [
            replace(
                entry.with_facts(generation=entry.arena.generation + 1, layout_hash="", layout_bytes=0, is_sealed=False),
                commits=entry.row.commits + 1,
                layout_serial=None,
                state=None,
            )
            for entry in entries
        ]
        if not rows:
            return
        self._store.lose(rows)
        log.error("vault.lost", arenas=len(rows), why="a keeper of theirs has died, or does not have their memory any more")
        for row in rows:
            entry = self.by_id[row.arena.id]
            before = entry.contents
            self.account.move(entry.arena, -before.used_bytes, -entry.count)
            entry.contents = Contents()
            self.tell("lost", self.change(entry, row), lost_bytes=before.used_bytes)


def _window(arena: Arena) -> arena_windows.Window:
    return arena.base, arena.base + arena.window_bytes
