"""Checkpoints of the databases, in a thread.

SQLite would otherwise checkpoint within some commit, and every caller of mpsd, such as a standby, would wait for the disk (3 to
50 ms were seen, where a commit takes 0.1).
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import trio

from mpsd.storage.database import checkpoint, open_beside
from mpsd.storage.disk_room import keep_room, keep_room_of
from mpsd.threads import run_in_thread

SECONDS = 5.0
ROOM_BYTES = 64 << 10  # of each database, and of its log: enough for some dozens of changes


class Checkpointing:
    """Guards one more connection to each database, from the start: the number of mpsd's descriptors does not change."""

    def __init__(self, directory: Path) -> None:
        """Open the connections.  directory: of the databases, which are open.  Raises UnusablePath."""
        self._databases: dict[Path, sqlite3.Connection] = {}
        self._done: dict[Path, int] = {}  # by log: the time of its last write
        self._copied: dict[Path, int] = {}  # by log: the version of the database that was copied
        self._files: dict[Path, int] = {}  # by log: its database; never closed while in use, since that drops SQLite's locks
        for path in sorted(directory.glob("*.db")):
            log = path.with_name(f"{path.name}-wal")
            self._databases[log] = open_beside(path)
            self._files[log] = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    async def run(self) -> None:
        """Checkpoint changed databases; run as long as mpsd."""
        while True:
            for log, database in self._databases.items():
                if self._is_new(log):
                    await run_in_thread(self._keep_room, log)
                    self._is_new(log)  # note the time now: later writes wait for the next checkpoint
                    await run_in_thread(checkpoint, database)
            await trio.sleep(SECONDS)

    def _keep_room(self, log: Path) -> None:
        """Reserve space for writes on a full disk.  SQLite frees the database's once it has checkpointed everything."""
        keep_room(log, ROOM_BYTES)
        keep_room_of(self._files[log], ROOM_BYTES)

    def copy(self) -> None:
        """Write each database that changed since the last copy to a new file, after another process removed the directory.

        mpsd itself continues with the removed files.  Call it in a thread.  Raises OSError, sqlite3.Error.
        """
        for log, database in self._databases.items():
            [version] = database.execute("PRAGMA data_version").fetchone()
            if self._copied.get(log) == version:
                continue
            path = log.with_name(log.name.removesuffix("-wal"))
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)
            new.touch(0o600)
            with closing(sqlite3.connect(new)) as copy:
                database.backup(copy)
            new.replace(path)
            self._copied[log] = version

    def forget_copies(self) -> None:
        """Copy everything next time: the copies were removed too."""
        self._copied.clear()

    def _is_new(self, log: Path) -> bool:
        """Return whether the log was written since the last call."""
        before = self._done.get(log)
        with suppress(OSError):  # another process has moved it, or the disk fails
            self._done[log] = log.stat().st_mtime_ns
        return self._done.get(log) != before

    def close(self) -> None:
        if self._copied:
            with suppress(OSError, sqlite3.Error):
                self.copy()
        for database in self._databases.values():
            database.close()
        for file in self._files.values():
            os.close(file)
