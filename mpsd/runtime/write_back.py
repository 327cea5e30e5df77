"""Bringing what the databases' write-ahead logs have into the databases: SQLite would do it within some commit, and everybody
who waits for mpsd, a standby among them, would wait for the disk (3 to 50 ms were seen, where a commit takes 0.1).
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import trio

from mpsd.database import checkpoint, open_beside
from mpsd.disk_room import keep_room, keep_room_of

SECONDS = 5.0
ROOM_BYTES = 64 << 10  # of each database, and of its log: some dozens of changes


class WriteBack:
    """Guards one more connection to each database, from the start: the number of mpsd's descriptors does not change."""

    def __init__(self, directory: Path) -> None:
        """directory: of the databases, which are open.  Raises UnusablePath."""
        self._databases: dict[Path, sqlite3.Connection] = {}
        self._done: dict[Path, int] = {}  # by log: when it had been written last
        self._files: dict[Path, int] = {}  # by log: of its database; closed, it would take SQLite's locks with it
        for path in sorted(directory.glob("*.db")):
            log = path.with_name(f"{path.name}-wal")
            self._databases[log] = open_beside(path)
            self._files[log] = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    async def run(self) -> None:
        """Lives as long as mpsd."""
        while True:
            for log, database in self._databases.items():
                if self._is_new(log):
                    await trio.to_thread.run_sync(self._keep_room, log)
                    self._is_new(log)  # by that it is; what is written from here on is brought in next time
                    await trio.to_thread.run_sync(checkpoint, database)
            await trio.sleep(SECONDS)

    def _keep_room(self, log: Path) -> None:
        """For what is written while the disk is full.  SQLite gives a database's back when it has brought in everything."""
        keep_room(log, ROOM_BYTES)
        keep_room_of(self._files[log], ROOM_BYTES)

    def _is_new(self, log: Path) -> bool:
        """What is in it, since it was asked last."""
        before = self._done.get(log)
        with suppress(FileNotFoundError):  # somebody has moved it elsewhere
            self._done[log] = log.stat().st_mtime_ns
        return self._done.get(log) != before

    def close(self) -> None:
        for database in self._databases.values():
            database.close()
        for file in self._files.values():
            os.close(file)
