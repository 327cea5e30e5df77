"""The settings of services, and the enlisted processes: SQLite with a write-ahead log, in the state directory.

They survive a `kill -9` of mpsd once a method has returned.  Members and past promotions are not stored: members rejoin, and
the vault stores the writer of an arena (vault/store.py).  Enlisted processes are stored because a process enlists only once,
before it initializes CUDA; actives because one that hangs does not rejoin.
"""

import sqlite3
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from mpsd.errors import UnusablePath
from mpsd.model.process import ProcessId
from mpsd.model.service import Dealt, Elasticity, ServiceSettings
from mpsd.storage.database import close, open_database, read, write

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE services (arena_id INTEGER PRIMARY KEY, standbys INTEGER NOT NULL, sm_percent REAL, memory_bytes INTEGER,
                       heartbeat_seconds REAL NOT NULL, elastic TEXT NOT NULL, dealt_percent REAL,
                       dealt_before REAL, dealt_ticks INTEGER);
CREATE TABLE enlisted (pid INTEGER NOT NULL, start_time INTEGER NOT NULL, name TEXT NOT NULL, uid INTEGER NOT NULL,
                       enlisted_by INTEGER NOT NULL, domain TEXT NOT NULL, PRIMARY KEY (pid, start_time));
CREATE TABLE actives (arena_id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_time INTEGER NOT NULL,
                      generation INTEGER NOT NULL, rank INTEGER NOT NULL, heartbeat_seconds REAL NOT NULL);
"""


class EnlistmentPlan(Struct, frozen=True):
    """What a process is enlisted for.  name, uid: of the service, and of its owner.  by: the process's own user.  domain: the
    one that it was given; empty: none.
    """

    name: str
    uid: int
    by: int
    domain: str = ""


class Active(Struct, frozen=True):
    """The member that writes the arena in this generation.  heartbeat_seconds: 0: mpsd expects none."""

    process: ProcessId
    generation: int
    rank: int
    heartbeat_seconds: float


class ServiceStore:
    """Guards one database file; used only from the trio thread.  Raises UnusablePath if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        holds = "how many standbys each service is to have, and which processes are kept apart"
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, holds)
        self._read = partial(read, self._db, path)

    def load(self, arenas: Collection[int]) -> dict[int, tuple[ServiceSettings, Dealt | None]]:
        """Return the stored settings by arena, and what was dealt last, if anything.

        Settings of arenas that no longer exist are deleted."""
        found = self._read("SELECT * FROM services")
        for arena_id, *_ in found:
            if arena_id not in arenas:
                self.forget(arena_id)
        return {
            arena_id: (
                ServiceSettings(standbys, sm_percent, memory, heartbeat, elastic=Elasticity(elastic)),
                None if dealt[0] is None else Dealt(*dealt),
            )
            for arena_id, standbys, sm_percent, memory, heartbeat, elastic, *dealt in found
            if arena_id in arenas
        }

    def save(self, arena_id: int, of: ServiceSettings, dealt: Dealt | None = None) -> None:
        facts = (None, None, None) if dealt is None else (dealt.sm_percent, dealt.before, dealt.ticks)
        values = (arena_id, of.standbys, of.sm_percent, of.memory_bytes, of.heartbeat_seconds, of.elastic.value, *facts)
        self._write("INSERT OR REPLACE INTO services VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def deal(self, deals: Mapping[int, Dealt]) -> None:
        """Store the shares of these services, all or none."""
        statement = "UPDATE services SET dealt_percent = ?, dealt_before = ?, dealt_ticks = ? WHERE arena_id = ?"
        try:
            write(self._db, [(statement, (of.sm_percent, of.before, of.ticks, arena_id)) for arena_id, of in deals.items()])
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be written: {exc}") from None

    def forget(self, arena_id: int) -> None:
        self._write("DELETE FROM services WHERE arena_id = ?", (arena_id,))

    def actives(self, arenas: Collection[int]) -> dict[int, Active]:
        """Return the stored actives by arena.  Those of arenas that no longer exist are deleted."""
        found = self._read("SELECT * FROM actives")
        for arena_id, *_ in found:
            if arena_id not in arenas:
                self.forget_active(arena_id)
        return {
            arena_id: Active(ProcessId(pid, start), *facts) for arena_id, pid, start, *facts in found if arena_id in arenas
        }

    def save_active(self, arena_id: int, of: Active) -> None:
        values = (arena_id, of.process.pid, of.process.start_time, of.generation, of.rank, of.heartbeat_seconds)
        self._write("INSERT OR REPLACE INTO actives VALUES (?, ?, ?, ?, ?, ?)", values)

    def forget_active(self, arena_id: int) -> None:
        self._write("DELETE FROM actives WHERE arena_id = ?", (arena_id,))

    def plans(self) -> dict[ProcessId, EnlistmentPlan]:
        """Return the stored plans; some of the processes may have ended."""
        return {ProcessId(pid, start): EnlistmentPlan(*values) for pid, start, *values in self._read("SELECT * FROM enlisted")}

    def enlist(self, process: ProcessId, plan: EnlistmentPlan) -> None:
        values = (process.pid, process.start_time, plan.name, plan.uid, plan.by, plan.domain)
        self._write("INSERT OR REPLACE INTO enlisted VALUES (?, ?, ?, ?, ?, ?)", values)

    def release(self, process: ProcessId) -> None:
        self._write("DELETE FROM enlisted WHERE pid = ? AND start_time = ?", (process.pid, process.start_time))

    def close(self) -> None:
        close(self._db)

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be written: {exc}") from None
