"""Bringing what the databases' write-ahead logs have into the databases: SQLite would do it within some commit, and everybody
who waits for mpsd, a standby among them, would wait for the disk (3 to 50 ms were seen, where a commit takes 0.1).
"""

import sqlite3
from contextlib import suppress
from pathlib import Path

import trio

from mpsd.database import checkpoint, open_beside
from mpsd.disk_room import keep_room

SECONDS = 5.0
ROOM_BYTES = 64 << 10  # of each database, and of its log: some dozens of changes


def _write_back(log: Path, database: sqlite3.Connection) -> None:
    """And keep room for what is written while the disk is full; SQLite gives it back when it has written back everything."""
    checkpoint(database)
    for path in (log, log.with_name(log.name.removesuffix("-wal"))):
        keep_room(path, ROOM_BYTES)


class WriteBack:
    """Guards one more connection to each database, from the start: the number of mpsd's descriptors does not change."""

    def __init__(self, directory: Path) -> None:
        """directory: of the databases, which are open.  Raises UnusablePath."""
        self._databases: dict[Path, sqlite3.Connection] = {}
        self._done: dict[Path, int] = {}  # by log: when it had been written last
        for path in sorted(directory.glob("*.db")):
            self._databases[path.with_name(f"{path.name}-wal")] = open_beside(path)

    async def run(self) -> None:
        """Lives as long as mpsd."""
        while True:
            for log, database in self._databases.items():
                if self._is_new(log):
                    await trio.to_thread.run_sync(_write_back, log, database)
            await trio.sleep(SECONDS)

    def _is_new(self, log: Path) -> bool:
        """What is in it, since it was asked last."""
        before = self._done.get(log)
        with suppress(FileNotFoundError):  # somebody has moved it elsewhere
            self._done[log] = log.stat().st_mtime_ns
        return self._done.get(log) != before

    def close(self) -> None:
        for database in self._databases.values():
            database.close()
