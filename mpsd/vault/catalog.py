"""Keep all arenas, their account and their windows; load them from the store.

The catalog is compared with what the keepers hold: if an allocation is missing there, its whole arena is lost, because a part
of a model is of no use.
"""

import time
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from mpsd.errors import NoRoom, NoSuchArena
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.model.arena import Arena
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.process import ProcessId
from mpsd.notify import Changed, Signal
from mpsd.vault.live_arena import LiveArena, serial_of
from mpsd.vault.rules import windows as arena_windows
from mpsd.vault.rules.contents import Contents
from mpsd.vault.rules.eviction import expires_at
from mpsd.vault.rules.settings import VaultSettings
from mpsd.vault.rules.usage import ArenaAccount, Bounds
from mpsd.vault.store import Row, VaultStore

log = structlog.get_logger()
_OFTEN = frozenset({"committed", "opened", "closed"})  # frequent events of a running program
_UNSEEN_SERIALS = 1 << 32  # far more than mpsd gives between two starts
LeaseBytes = Callable[[int, str], int | None]  # of a lease on a GPU; None: no limit, or the lease has ended


class VaultParts(Struct, frozen=True):
    """The parts of the daemon that the vault uses.  clock: seconds since the epoch.  ranges: whose uids count as one user."""

    devices: Callable[[], Sequence[Device]]
    lease_bytes: LeaseBytes
    publish: Callable[[str, Mapping[str, object]], None]
    clock: Callable[[], float] = time.time
    ranges: UidRanges = NO_RANGES


class Catalog:
    """Guards that names, windows and serials are each given once, and that the account agrees with the contents."""

    def __init__(self, store: VaultStore, parts: VaultParts, settings: VaultSettings) -> None:
        """Load the arenas.  Raise UnusablePath."""
        self.settings = settings
        self.parts = parts
        self.account = ArenaAccount(parts.ranges.share_of)
        self.by_id: dict[int, LiveArena] = {}
        self.by_name: dict[str, LiveArena] = {}
        self.ends: dict[int, float] = {}  # expiry times of unheld arenas; an arena that is opened stays in it until then
        self.schedule_changed = Changed()  # an arena may expire earlier than planned
        self._windows: list[arena_windows.Window] = []  # of all, in order
        self._opened: dict[ProcessId, dict[int, None]] = {}  # arenas that a process has open, and some that it had, by id
        self.arena_changed = Signal[[str, Arena]]()  # the name of the event; after it is stored
        self._store = store
        self._serial = store.last_serial()
        self._has_skipped = False
        for row in store.arenas():
            self._load(row)

    def _load(self, row: Row) -> None:
        if not row.arena.is_held and row.arena.unheld_since is None:  # its holders are of an earlier boot
            row = replace(row, arena=replace(row.arena, unheld_since=self.parts.clock()))
            self._store.change(row)
        known = self._store.allocations(row)
        contents = Contents(
            (each for each in known if each.is_committed),
            (each for each in known if not each.is_committed),
            (each.offset for each in known if each.is_dropped),
        )
        self.add(LiveArena(row, contents))

    # -- views -----------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> LiveArena:
        if (entry := self.by_name.get(name)) is None:
            raise NoSuchArena(f"no arena is called {name}")
        return entry

    def find_id(self, arena_id: int) -> LiveArena:
        if (entry := self.by_id.get(arena_id)) is None:
            raise NoSuchArena(f"no arena has id {arena_id}")
        return entry

    def opened_by(self, process: ProcessId) -> list[LiveArena]:
        """Return all arenas that the process has open, and perhaps some that it had."""
        return [self.by_id[arena_id] for arena_id in self._opened.get(process, ()) if arena_id in self.by_id]

    def has_open(self, process: ProcessId) -> bool:
        """Return whether the process has any arena open."""
        ids = self._opened.get(process, {})
        while ids:
            entry = self.by_id.get(next(reversed(ids)))
            if entry is not None and process in (entry.arena.writer, *entry.arena.readers):
                return True
            ids.popitem()
        self._opened.pop(process, None)
        return False

    def bounds(self, arena: Arena) -> Bounds:
        """Return the bounds of the arena.  Raise NoSuchDevice if its GPU is missing now."""
        gpu = find_device(self.parts.devices(), arena.gpu)
        lease = None if arena.lease_id is None else self.parts.lease_bytes(arena.lease_id, arena.gpu)
        return Bounds(self.settings, gpu.total_bytes, lease)

    def windows(self, but: Arena) -> list[arena_windows.Window]:
        """Return the windows of all other arenas."""
        return [window for window in self._windows if window != _window(but)]

    def place(self, size: int) -> int:
        """Return a free address for a window of this size.  Raise NoRoom."""
        base = arena_windows.place(self._windows, size)
        if base is None:
            raise NoRoom(f"no {size} bytes of addresses in a row are free for another window")
        return base

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    # -- changes ---------------------------------------------------------------------------------------------------------

    def add(self, entry: LiveArena) -> Arena:
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
        """Note that the process is about to have the arena open."""
        self._opened.setdefault(process, {})[arena.id] = None

    def note_closed(self, process: ProcessId, arena: Arena) -> None:
        """Note that the process has closed the arena: the arenas that one opens and closes while it lives have no bound."""
        self._opened.get(process, {}).pop(arena.id, None)

    def note_gone(self, process: ProcessId) -> None:
        """Note that the process has no arena open, and will open none."""
        self._opened.pop(process, None)

    def remove(self, entry: LiveArena) -> None:
        arena = entry.arena
        entry.is_removed = True
        del self.by_id[arena.id], self.by_name[arena.name]
        self.account.move(arena, -entry.contents.used_bytes, -entry.count)
        self.account.remove(arena)
        self._windows.remove(_window(arena))
        self.ends.pop(arena.id, None)
        entry.changed.notify()

    def change(self, entry: LiveArena, row: Row) -> Arena:
        """Take over `row`, which is stored."""
        old = entry.arena
        arena = entry.become(row)
        self.account.change(old, arena)
        if old.name != arena.name:
            del self.by_name[old.name]
            self.by_name[arena.name] = entry
        if _window(old) != _window(arena):
            self._windows.remove(_window(old))
            insort(self._windows, _window(arena))
        self.schedule(arena)
        return arena

    def schedule(self, arena: Arena) -> None:
        """Update the time at which the arena expires."""
        if (end := expires_at(arena)) is None:
            self.ends.pop(arena.id, None)
        else:
            self.ends[arena.id] = end
            self.schedule_changed.notify()

    def count(self, entry: LiveArena, bytes_before: int, count_before: int) -> None:
        """Update the account after a change of the contents, from their size before."""
        contents = entry.contents
        self.account.move(entry.arena, contents.used_bytes - bytes_before, contents.count - count_before)

    def tell(self, what: str, arena: Arena, **facts: object) -> None:
        if what in _OFTEN:
            log.debug("arena.event", what=what, arena=arena.name, owner_uid=arena.owner_uid, **facts)
        else:
            log.info("arena.event", what=what, arena=arena.name, owner_uid=arena.owner_uid, **facts)
        whose = {"id": arena.id, "name": arena.name, "owner_uid": arena.owner_uid, "owner_gid": arena.owner_gid}
        self.parts.publish(f"arena.{what}", {**whose, "mode": arena.mode, "gpu": arena.gpu, **facts})
        self.arena_changed.emit(what, arena)

    # -- comparison with the keepers -------------------------------------------------------------------------------------

    def compare(self, held: Collection[str], is_all: bool) -> list[str]:
        """Return the names that the keepers should not hold.

        Arenas whose names are missing are lost, unless a keeper was not asked yet (is_all is False).  Raise UnusablePath.
        """
        wanted: set[str] = set()
        lost = []
        for entry in self.by_id.values():
            names = entry.names()
            if not is_all or all(name in held for name in names):
                wanted.update(names)
            else:
                lost.append(entry)
        self._serial = max(self._serial, max(map(serial_of, held), default=0))
        if not is_all:
            self._skip_serials()
        self._lose(lost)
        return [name for name in held if name not in wanted]

    def _skip_serials(self) -> None:
        """Give none that a keeper which was not asked yet may have: of removed memory, which is not stored any more."""
        if not self._has_skipped:
            self._serial += _UNSEEN_SERIALS
            self._store.reserve_serial(self._serial)
            self._has_skipped = True

    def _lose(self, entries: Iterable[LiveArena]) -> None:
        """Empty these arenas and store their loss.

        Their generation changes, so the next request of a living writer fails; their commit changes, so a reader that takes an
        arena in pages notices it.
        """
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
        log.error("vault.lost", arenas=len(rows), why="their keeper has died, or no longer has their memory")
        for row in rows:
            entry = self.by_id[row.arena.id]
            before = entry.contents
            self.account.move(entry.arena, -before.used_bytes, -entry.count)
            entry.contents = Contents()
            self.tell("lost", self.change(entry, row), lost_bytes=before.used_bytes)


def _window(arena: Arena) -> arena_windows.Window:
    return arena.base, arena.base + arena.window_bytes
