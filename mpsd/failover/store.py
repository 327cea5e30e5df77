"""What the owners of services asked for, on disk: SQLite with a write-ahead log, in the state directory.

It outlives a `kill -9` once a method has returned.  Who is a member, and who was promoted when, is not stored: members join
again, and who writes an arena is stored with the arena (vault/store.py).
"""

import sqlite3
from collections.abc import Collection
from pathlib import Path

from mpsd.database import open_database
from mpsd.errors import UnusablePath
from mpsd.service import ServiceSettings

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE services (arena_id INTEGER PRIMARY KEY, standbys INTEGER NOT NULL, sm_percent REAL, memory_bytes INTEGER,
                       heartbeat_seconds REAL NOT NULL);
"""


class ServiceStore:
    """Guards one database file; used from the trio thread alone.  Raises UnusablePath where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, "NORMAL", "how many standbys each service is to have")

    def load(self, arenas: Collection[int]) -> dict[int, ServiceSettings]:
        """By arena.  What is stored of others, which are gone, is forgotten."""
        try:
            found = self._db.execute("SELECT * FROM services").fetchall()
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be read: {exc}") from None
        for arena_id, *_ in found:
            if arena_id not in arenas:
                self.forget(arena_id)
        return {arena_id: ServiceSettings(*values) for arena_id, *values in found if arena_id in arenas}

    def save(self, arena_id: int, of: ServiceSettings) -> None:
        values = (arena_id, of.standbys, of.sm_percent, of.memory_bytes, of.heartbeat_seconds)
        self._write("INSERT OR REPLACE INTO services VALUES (?, ?, ?, ?, ?)", values)

    def forget(self, arena_id: int) -> None:
        self._write("DELETE FROM services WHERE arena_id = ?", (arena_id,))

    def close(self) -> None:
        self._db.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be written: {exc}") from None
