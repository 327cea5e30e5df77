"""mpsd's own SQLite files: private, with a write-ahead log, of a version that this mpsd reads; writes are atomic.

The event loop commits.  A commit writes to the log, in the kernel's memory, and never waits for the disk (synchronous=OFF); it
survives the end of mpsd.  If a change has to survive a power cut too, a thread syncs the log to the disk (`sync_log`) before
the caller gets its answer.  Why: docs/decisions/034-no-commit-waits-for-the-disk.md.
"""

import fcntl
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpsd.errors import UnusablePath

LOG_PAGES = 8192  # of 4 KiB; a commit to a longer log checkpoints it, if the thread has not (`checkpoint`)
_LOCKED_MILLISECONDS = 10  # it blocks the event loop; a process that holds a lock for longer is not mpsd
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid

Write = tuple[str, tuple[Any, ...]]  # a statement and its values


def drop_locks(directory: Path, has_ended: Callable[[int], bool]) -> None:
    """Drop the locks on these databases of an mpsd that has ended.  Call it before any is opened.

    They belong to its table of descriptors, fcntl(2), which stays while one of its threads waits for a client's file server, or
    for a hung driver.  SQLite keeps them at the -shm file, and makes it anew of the log.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    for path in directory.glob("*.db-shm"):
        with suppress(OSError), path.open("r+b") as file:  # what cannot be opened is reported when SQLite opens it
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK and pid > 0 and has_ended(pid):  # 0: of a process in another pid namespace
                path.unlink()


def open_database(path: Path, schema: str, version: int, holds: str) -> sqlite3.Connection:
    """Open a database file, creating it if needed.  Statements outside BEGIN are transactions of their own.

    Raises UnusablePath.
    schema: creates the tables of a new file.  holds: describes the contents, for the error message.
    """
    try:
        path.touch(0o600)  # private from its first byte on
        path.chmod(0o600)
        database = sqlite3.connect(path, isolation_level=None)
    except (sqlite3.Error, OSError) as exc:
        raise _unusable(path, exc, holds) from None
    try:
        _prepare(database, path, schema, version, holds)
    except BaseException:
        database.close()  # Python 3.13 warns when the garbage collector has to close a connection
        raise
    database.execute(f"PRAGMA busy_timeout={_LOCKED_MILLISECONDS}")  # until here, at the start, the default of 5 s applies
    database.execute("PRAGMA synchronous=OFF")
    return database


def _prepare(database: sqlite3.Connection, path: Path, schema: str, version: int, holds: str) -> None:
    """Set the connection's modes, check the file, and make the tables of a new one.  Raises UnusablePath."""
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
        found = database.execute("PRAGMA user_version").fetchone()[0]
        said = database.execute("PRAGMA quick_check(1)").fetchone()[0]  # 33 ms for 100,000 rows
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version={version}; COMMIT;")
    except (sqlite3.Error, OSError) as exc:
        raise _unusable(path, exc, holds) from None
    if said != "ok":
        raise UnusablePath(f"{path} cannot be used: {said.splitlines()[-1]}; it holds {holds}{_way_out(path)}")
    if found not in (0, version):
        raise UnusablePath(
            f"{path} has version {found}, this mpsd reads {version}: quit the mpsd that wrote it first; "
            f"where that is down, start it once more to quit it. It holds {holds}{_way_out(path)}"
        )


def _unusable(path: Path, exc: Exception, holds: str) -> UnusablePath:
    is_damaged = getattr(exc, "sqlite_errorcode", None) in _DAMAGED
    return UnusablePath(f"{path} cannot be used: {exc}; it holds {holds}{_way_out(path) if is_damaged else ''}")


def read(database: sqlite3.Connection, path: Path, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows.  Raises UnusablePath."""
    try:
        return database.execute(statement, values).fetchall()
    except sqlite3.Error as exc:
        raise UnusablePath(f"{path} cannot be read: {exc}") from None


def write(database: sqlite3.Connection, writes: Iterable[Write]) -> int:
    """Run the writes in one transaction; return the id of the last inserted row.

    Raises sqlite3.Error, and what `writes` raises; then nothing is written.
    """
    last = 0
    database.execute("BEGIN IMMEDIATE")
    try:
        for statement, values in writes:
            last = database.execute(statement, values).lastrowid or 0
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return last


def close(database: sqlite3.Connection) -> None:
    """Close the connection, waiting for the disk.

    The last connection to close moves the log into the file, and removes the log once the file is on the disk.
    """
    with suppress(sqlite3.Error):
        database.execute("PRAGMA synchronous=FULL")
    database.close()


def open_beside(path: Path) -> sqlite3.Connection:
    """Open another connection to an open database, for `checkpoint`.  Raises UnusablePath."""
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as exc:
        raise UnusablePath(f"{path} cannot be opened once more: {exc}") from None
    database.execute("PRAGMA synchronous=FULL")  # syncs the log before writing the file, and the file before reusing the log
    checkpoint(database)
    return database


def sync_log(path: Path) -> None:
    """Sync to the disk what was committed to the database at `path`.  Waits for the disk: call it in a thread.  Raises OSError.

    SQLite's locks are on the database and on its -shm file: closing a descriptor of the log drops no lock.  A log that another
    process removed is not synced: mpsd keeps a copy then (app/removed_state.py).
    """
    try:
        descriptor = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint(database: sqlite3.Connection) -> None:
    """Move the log into the file, as far as possible now.  Call it in a thread, on a connection of its own.

    Writers continue at the same time.  An error is ignored here: the next commit reports the disk's error.
    """
    with suppress(sqlite3.Error):
        database.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _way_out(path: Path) -> str:
    """Return the advice for a damaged file.  The log has to move with it: SQLite would apply it to the next file."""
    return f". To start without it: mv {path}* elsewhere"
