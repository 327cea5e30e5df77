"""Store arenas on disk: SQLite with a write-ahead log, in the state directory.

Every method is one transaction, and what it wrote outlives a `kill -9` once it has returned.  It need not outlive a power cut:
the memory does not either.  The state of an allocation follows from numbers, so that a commit of many writes one row:

    put_in      the commit that adds it: it is committed if this is not above the arena's `commits`
    dropped_in  the commit that removes it; NULL: none.  If not above `commits`, the row means nothing, and is deleted soon

Prose: docs/vault.md, "What is stored, and what outlives what".
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from mpsd.errors import UnusablePath
from mpsd.host.boot_id import read_boot_id
from mpsd.model.arena import Access, Allocation, Arena, KeptState
from mpsd.model.process import ProcessId
from mpsd.storage.database import Write, close, open_database, read, write

SCHEMA_VERSION = 1
_COLUMNS = {  # of an arena, after its id
    "name": "TEXT NOT NULL UNIQUE", "owner_uid": "INTEGER NOT NULL", "owner_gid": "INTEGER NOT NULL",
    "mode": "INTEGER NOT NULL", "gpu": "TEXT NOT NULL", "base": "INTEGER NOT NULL", "window_bytes": "INTEGER NOT NULL",
    "capacity_bytes": "INTEGER NOT NULL", "created_at": "REAL NOT NULL", "layout_hash": "TEXT NOT NULL",
    "layout_bytes": "INTEGER NOT NULL", "layout_serial": "INTEGER", "commits": "INTEGER NOT NULL",
    "generation": "INTEGER NOT NULL", "is_sealed": "INTEGER NOT NULL", "lease_id": "INTEGER", "ttl_seconds": "REAL",
    "unheld_since": "REAL", "pid_namespace": "INTEGER", "is_of_owner": "INTEGER NOT NULL",
}  # fmt: skip
_SCHEMA = f"""
CREATE TABLE arenas (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())});
CREATE TABLE allocations (serial INTEGER PRIMARY KEY, arena_id INTEGER NOT NULL, place INTEGER NOT NULL, bytes INTEGER NOT NULL,
                          put_in INTEGER NOT NULL, dropped_in INTEGER);
CREATE INDEX allocations_of_arena ON allocations (arena_id, put_in);
CREATE INDEX dropped_of_arena ON allocations (arena_id) WHERE dropped_in IS NOT NULL;
CREATE TABLE holders (arena_id INTEGER NOT NULL, pid INTEGER NOT NULL, start_time INTEGER NOT NULL, access TEXT NOT NULL,
                      uid INTEGER NOT NULL, PRIMARY KEY (arena_id, pid, start_time));
CREATE TABLE boot (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
CREATE TABLE daemon (one INTEGER PRIMARY KEY CHECK (one = 1), pid INTEGER NOT NULL, start_time INTEGER NOT NULL);
CREATE TABLE earlier (pid INTEGER NOT NULL, start_time INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (pid, start_time));
CREATE TABLE keepers (number INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_time INTEGER NOT NULL);
CREATE TABLE states (serial INTEGER PRIMARY KEY AUTOINCREMENT, arena_id INTEGER NOT NULL UNIQUE, generation INTEGER NOT NULL,
                     bytes INTEGER NOT NULL);
"""
_CHANGING = (
    "name", "mode", "window_bytes", "capacity_bytes", "layout_hash", "layout_bytes", "layout_serial", "commits", "generation",
    "is_sealed", "ttl_seconds", "unheld_since",
)  # fmt: skip
_NO_ARENA = 0  # AUTOINCREMENT counts from 1
_SOME = 2000  # rows that are deleted at a time, so that other tasks can run in between


class Row(Struct, frozen=True):
    """An arena as it is stored, without its contents; commits: the number of commits so far."""

    arena: Arena
    commits: int = 0
    layout_serial: int | None = None
    state: KeptState | None = None


class VaultStore:
    """Guards one database file; used from the trio thread alone.  Raises UnusablePath where it cannot be read or written."""

    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self.before_writing: Callable[[], object] = _nothing  # called before each statement that writes: tests die there
        holds = "which GPU memory belongs to which arena"
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, holds)
        self._read = partial(read, self._db, path)
        try:
            self._begin_boot(read_boot_id() if boot_id is None else boot_id)
        except UnusablePath:
            self.close()
            raise

    # -- reading -------------------------------------------------------------------------------------------------------------

    def arenas(self) -> list[Row]:
        """Return all arenas by id, with their holders."""
        found = self._read(f"SELECT id, {', '.join(_COLUMNS)} FROM arenas ORDER BY id")
        return [self._row(values) for values in found]

    def allocations(self, row: Row) -> list[Allocation]:
        columns = "place, bytes, serial, put_in, dropped_in IS NOT NULL"
        statement = f"SELECT {columns} FROM allocations WHERE arena_id = ? AND (dropped_in IS NULL OR dropped_in > ?)"
        found = self._read(statement, (row.arena.id, row.commits))
        return [Allocation(place, size, no, put <= row.commits, bool(gone), put) for place, size, no, put, gone in found]

    def holder_uids(self) -> dict[ProcessId, int]:
        """Return the users that the holders of arenas count against."""
        return {ProcessId(pid, start): uid for pid, start, uid in self._read("SELECT pid, start_time, uid FROM holders")}

    def last_serial(self) -> int:
        """Return the highest serial: of states the highest that was ever given, of others the highest in use."""
        [found] = self._read(
            "SELECT (SELECT max(serial) FROM allocations), (SELECT max(layout_serial) FROM arenas),"
            " (SELECT seq FROM sqlite_sequence WHERE name = 'states')"
        )
        return max(serial or 0 for serial in found)

    def reserve_serial(self, serial: int) -> None:
        """Let this one count as the highest that was ever given."""
        self._write([("INSERT INTO states VALUES (?, ?, 0, 0)", (serial, _NO_ARENA)), _stateless(_NO_ARENA)])

    # -- changes of an arena -------------------------------------------------------------------------------------------------

    def add(self, arena: Arena) -> int:
        """Store a new arena and return its id; no id is given twice."""
        values = tuple(_stored(Row(arena), name) for name in _COLUMNS)
        places = ", ".join("?" * len(_COLUMNS))
        return self._write([(f"INSERT INTO arenas ({', '.join(_COLUMNS)}) VALUES ({places})", values)])

    def change(self, row: Row) -> None:
        self._write([_changed(row)])

    def replace(self, old: Row, new: Row, fenced: ProcessId | None) -> None:
        """Store that an arena has another name now, and a second one the name that it had; and that the writer of the first one
        no longer has it open, and what that one did not commit is gone."""
        released = [] if fenced is None else [_released(old, fenced)]
        self._write([_changed(old), *released, *_rolled_back(old), _changed(new)])

    def hold(self, row: Row, process: ProcessId, access: Access, uid: int) -> None:
        """Store that the process has the arena open, with this access, and counts against this user."""
        values = (row.arena.id, process.pid, process.start_time, access.value, uid)
        self._write([_changed(row), ("INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?, ?)", values)])

    def promote(self, row: Row, process: ProcessId, fenced: ProcessId | None) -> None:
        """Store a promotion: the earlier writer no longer has the arena open, and what it did not commit is gone."""
        released = [] if fenced is None else [_released(row, fenced)]
        self._write([_changed(row), *released, _with_access(row, process, Access.WRITE), *_rolled_back(row)])

    def demote(self, row: Row, writer: ProcessId) -> None:
        """Store that the writer is a reader now, and that what it did not commit is gone."""
        self._write([_changed(row), _with_access(row, writer, Access.READ), *_rolled_back(row)])

    def let_go(self, row: Row, process: ProcessId, *, takes_back: bool) -> None:
        """Store that the process no longer has the arena open.  takes_back: what it did not commit is gone."""
        self._write([_changed(row), _released(row, process), *(_rolled_back(row) if takes_back else ())])

    def put(self, row: Row, added: Sequence[Allocation], replaced: Sequence[Allocation]) -> None:
        arena_id, number = row.arena.id, row.commits + 1
        writes = [_gone(each) for each in replaced]
        statement = "INSERT INTO allocations VALUES (?, ?, ?, ?, ?, NULL)"
        writes += [(statement, (each.serial, arena_id, each.offset, each.bytes, number)) for each in added]
        self._write(writes)

    def drop(self, row: Row, gone: Iterable[Allocation], marked: Iterable[Allocation]) -> None:
        statement = "UPDATE allocations SET dropped_in = ? WHERE serial = ?"
        self._write([_gone(each) for each in gone] + [(statement, (row.commits + 1, each.serial)) for each in marked])

    def commit(self, row: Row, state: KeptState | None = None) -> bool:
        """Store a commit: `row` has the new number and layout.  state: the new state; None: the present one stays.

        Return whether there may be more rows of dropped allocations, for `forget_allocations`."""
        some = "SELECT serial FROM allocations WHERE arena_id = ? AND dropped_in IS NOT NULL LIMIT ?"
        kept = () if state is None else _with_state(row.arena.id, state)
        return self._delete_some(some, row.arena.id, _changed(row), *kept)

    def keep_state(self, arena_id: int, state: KeptState) -> None:
        """Store a new state of the arena, in place of the one before."""
        self._write(_with_state(arena_id, state))

    def remove(self, arena_id: int) -> None:
        """Remove the arena; `forget_allocations` removes its allocations, of which there may be many."""
        keys = (("arenas", "id"), ("holders", "arena_id"), ("states", "arena_id"))
        self._write([(f"DELETE FROM {table} WHERE {key} = ?", (arena_id,)) for table, key in keys])

    def removed(self) -> list[int]:
        """Return the arenas, removed or not, that still have rows of removed allocations."""
        is_there = "SELECT 1 FROM arenas WHERE id = arena_id AND (dropped_in IS NULL OR dropped_in > commits)"
        statement = f"SELECT DISTINCT arena_id FROM allocations WHERE NOT EXISTS ({is_there})"
        return [arena_id for (arena_id,) in self._read(statement)]

    def forget_allocations(self, arena_id: int) -> bool:
        """Delete some rows of removed allocations of the arena, or of a removed one; return whether there may be more."""
        if commits := self._read("SELECT commits FROM arenas WHERE id = ?", (arena_id,)):
            gone = f"dropped_in <= {commits[0][0]:d}"  # in an index: what the arena has meanwhile, often far more, is not read
        else:
            gone = "TRUE"
        return self._delete_some(f"SELECT serial FROM allocations WHERE arena_id = ? AND {gone} LIMIT ?", arena_id)

    def lose(self, rows: Iterable[Row]) -> None:
        """Store the loss of these arenas' memory and allocations; all at once."""
        writes: list[Write] = []
        for row in rows:
            gone = ("DELETE FROM allocations WHERE arena_id = ?", (row.arena.id,))
            writes += [_changed(row), gone, _stateless(row.arena.id)]
        self._write(writes)

    def remove_all(self) -> None:
        self._write([(f"DELETE FROM {table}", ()) for table in ("arenas", "allocations", "holders", "states")])

    def begin(self, daemon: ProcessId, now: int, has_ended: Callable[[ProcessId], bool]) -> dict[ProcessId, int]:
        """Store that this daemon uses the file from now on, in clock ticks.

        Return the earlier ones that have not ended, each with the time until which it may have used the file.
        """
        before = self._read("SELECT pid, start_time, ? FROM daemon", (now,))
        known = {ProcessId(pid, start): until for pid, start, until in (*before, *self._read("SELECT * FROM earlier"))}
        left = {each: until for each, until in known.items() if each != daemon and not has_ended(each)}
        rows = [("INSERT INTO earlier VALUES (?, ?, ?)", (each.pid, each.start_time, until)) for each, until in left.items()]
        ours = ("INSERT OR REPLACE INTO daemon VALUES (1, ?, ?)", (daemon.pid, daemon.start_time))
        self._write([("DELETE FROM earlier", ()), *rows, ours])
        return left

    def keepers(self) -> dict[int, ProcessId]:
        """Return the keepers that were reached last, by number."""
        found = self._read("SELECT number, pid, start_time FROM keepers")
        return {number: ProcessId(pid, start) for number, pid, start in found}

    def save_keeper(self, number: int, keeper: ProcessId) -> None:
        self._write([("INSERT OR REPLACE INTO keepers VALUES (?, ?, ?)", (number, keeper.pid, keeper.start_time))])

    def close(self) -> None:
        close(self._db)

    # -- steps ---------------------------------------------------------------------------------------------------------------

    def _row(self, values: tuple[Any, ...]) -> Row:
        arena_id, *facts = values
        stored = dict(zip(_COLUMNS, facts, strict=True))
        commits, layout_serial = stored.pop("commits"), stored.pop("layout_serial")
        holders = self._read("SELECT pid, start_time, access FROM holders WHERE arena_id = ? ORDER BY rowid", (arena_id,))
        by_access = [(ProcessId(pid, start), access) for pid, start, access in holders]
        writer = next((process for process, access in by_access if access == Access.WRITE), None)
        readers = tuple(process for process, access in by_access if access != Access.WRITE)
        flags = {name: bool(stored[name]) for name in ("is_sealed", "is_of_owner")}
        arena = Arena(arena_id, **{**stored, **flags, "writer": writer, "readers": readers})
        states = self._read("SELECT serial, generation, bytes FROM states WHERE arena_id = ?", (arena_id,))
        return Row(arena, commits, layout_serial, KeptState(*states[0]) if states else None)

    def _delete_some(self, some: str, arena_id: int, *writes: Write) -> bool:
        """Write these, and delete rows that `some` finds; return whether there may be more of them."""
        self._write([*writes, (f"DELETE FROM allocations WHERE serial IN ({some})", (arena_id, _SOME))])
        return bool(self._read("SELECT changes()") == [(_SOME,)])

    def _begin_boot(self, boot_id: str) -> None:
        """Forget processes and namespaces of an earlier boot: their pids and numbers mean others now."""
        if self._read("SELECT id FROM boot") != [(boot_id,)]:
            started = ("INSERT OR REPLACE INTO boot VALUES (1, ?)", (boot_id,))
            unknown = ("UPDATE arenas SET pid_namespace = 0 WHERE pid_namespace IS NOT NULL", ())
            of_processes = ("holders", "daemon", "earlier", "keepers")
            self._write([*((f"DELETE FROM {table}", ()) for table in of_processes), unknown, started])

    def _write(self, writes: Iterable[Write]) -> int:
        """Write all or nothing; return the id of the last inserted row."""
        try:
            return write(self._db, self._announced(writes))
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be written, so changes would be lost: {exc}") from None

    def _announced(self, writes: Iterable[Write]) -> Iterator[Write]:
        for each in writes:
            self.before_writing()
            yield each
        self.before_writing()  # before the COMMIT


def _nothing() -> None:
    pass


def _stored(row: Row, column: str) -> Any:
    return getattr(row if column in ("commits", "layout_serial") else row.arena, column)


def _changed(row: Row) -> Write:
    values = [_stored(row, name) for name in _CHANGING]
    return f"UPDATE arenas SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE id = ?", (*values, row.arena.id)


def _rolled_back(row: Row) -> list[Write]:
    return [
        ("DELETE FROM allocations WHERE arena_id = ? AND put_in > ?", (row.arena.id, row.commits)),
        ("UPDATE allocations SET dropped_in = NULL WHERE arena_id = ? AND dropped_in > ?", (row.arena.id, row.commits)),
    ]


def _with_access(row: Row, holder: ProcessId, access: Access) -> Write:
    values = (access.value, row.arena.id, holder.pid, holder.start_time)
    return "UPDATE holders SET access = ? WHERE arena_id = ? AND pid = ? AND start_time = ?", values


def _released(row: Row, process: ProcessId) -> Write:
    values = (row.arena.id, process.pid, process.start_time)
    return "DELETE FROM holders WHERE arena_id = ? AND pid = ? AND start_time = ?", values


def _stateless(arena_id: int) -> Write:
    return "DELETE FROM states WHERE arena_id = ?", (arena_id,)


def _with_state(arena_id: int, state: KeptState) -> list[Write]:
    values = (state.serial, arena_id, state.generation, state.bytes)
    return [_stateless(arena_id), ("INSERT INTO states VALUES (?, ?, ?, ?)", values)]


def _gone(one: Allocation) -> Write:
    return "DELETE FROM allocations WHERE serial = ?", (one.serial,)
