"""Store leases and the grants of admitted clients on disk: SQLite with a write-ahead log.

Every method is one transaction, and what it wrote survives a `kill -9` once it has returned, and a power cut too once `settled`
has returned.  The file is private to mpsd, since it contains tokens.
Prose: docs/leases.md, "What outlives mpsd".
"""

import sqlite3
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from mpsd.errors import UnusablePath
from mpsd.host.boot_id import read_boot_id
from mpsd.leases.rows import Admitted, admitted_of, admitted_row, lease_of, lease_row
from mpsd.model.lease import Lease
from mpsd.model.process import ProcessId
from mpsd.storage.database import Write, close, open_database, read, sync_log, write
from mpsd.threads import run_in_thread

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, owner_uid INTEGER NOT NULL, for_all_users INTEGER NOT NULL,
                     state TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, spec TEXT NOT NULL);
CREATE TABLE grants (pid INTEGER NOT NULL, start_time INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
                     lease_id INTEGER NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (pid, start_time));
CREATE TABLE boot (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
"""


class LeaseStore:
    """Guards one database file; used from the trio thread alone.  Raises UnusablePath where it cannot be read or written.

    boot_id: after a reboot, pids mean other processes: then `is_new_boot`, and grants of the boot before are gone.
    """

    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._written, self._on_disk = 0, 0  # commits
        self._syncing = trio.Lock()  # one thread at a time: the next one syncs all that was committed in the meantime
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, "leases and who runs under them")
        self._read = partial(read, self._db, path)
        self.is_new_boot = self._begin_boot(read_boot_id() if boot_id is None else boot_id)

    def leases(self) -> list[Lease]:
        return [lease_of(row) for row in self._read("SELECT * FROM leases ORDER BY id")]

    def add(self, lease: Lease) -> Lease:
        """Store a new lease; return it with its id, which is never given again."""
        statement = (
            "INSERT INTO leases (owner_uid, for_all_users, state, created_at, expires_at, spec) VALUES (?, ?, ?, ?, ?, ?)"
        )
        lease_id = self._write([(statement, lease_row(lease))])
        return replace(lease, id=lease_id)

    def change(self, lease: Lease) -> None:
        """Store a changed state, end or spec."""
        state, _, expires_at, spec = lease_row(lease)[2:]
        self._write(
            [("UPDATE leases SET state = ?, expires_at = ?, spec = ? WHERE id = ?", (state, expires_at, spec, lease.id))]
        )

    def remove(self, lease_ids: Iterable[int], process: ProcessId | None = None) -> None:
        """Remove these leases, and the grant of a process that has ended, in one transaction."""
        writes: list[Write] = [("DELETE FROM leases WHERE id = ?", (lease_id,)) for lease_id in lease_ids]
        if process is not None:
            writes.append(("DELETE FROM grants WHERE pid = ? AND start_time = ?", (process.pid, process.start_time)))
        self._write(writes)

    def admitted(self) -> list[Admitted]:
        return [admitted_of(row) for row in self._read("SELECT * FROM grants")]

    def admit(self, one: Admitted) -> None:
        self._write([("INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?, ?, ?)", admitted_row(one))])

    async def settled(self) -> None:
        """Return once all that was written before the call is on disk.

        Raise UnusablePath if the disk refuses it: then it lasts only as long as the machine runs.
        """
        wanted = self._written
        async with self._syncing:
            if self._on_disk >= wanted:
                return
            written = self._written
            try:
                await run_in_thread(sync_log, self._path, abandon_on_cancel=True)
            except OSError as exc:
                why = f"{self._path} is written, and the disk does not take it: a power cut would undo it: {exc}"
                raise UnusablePath(why) from None
            self._on_disk = written

    def close(self) -> None:
        close(self._db)

    def _begin_boot(self, boot_id: str) -> bool:
        known = self._read("SELECT id FROM boot")
        if known == [(boot_id,)]:
            return False
        self._write([("DELETE FROM grants", ()), ("INSERT OR REPLACE INTO boot VALUES (1, ?)", (boot_id,))])
        return bool(known)

    def _write(self, writes: list[Write]) -> int:
        """Write all or nothing; return the id of the last inserted row."""
        try:
            last = write(self._db, writes)
        except sqlite3.Error as exc:
            raise UnusablePath(f"{self._path} cannot be written, so changes would be lost: {exc}") from None
        self._written += 1
        return last
