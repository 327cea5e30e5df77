"""mpsd's own SQLite files: private, with a write-ahead log, of a version that this mpsd reads; written all or nothing.

A commit writes to the log, in the kernel's memory, and never waits for the disk (synchronous=OFF): the event loop makes it.  A
commit outlives mpsd.  What is to outlive a power cut too is brought to the disk by a thread (`sync_log`), before the caller is
answered.  Why: docs/decisions/034-no-commit-waits-for-the-disk.md.
"""

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mpsd.errors import UnusablePath

LOG_PAGES = 8192  # of 4 KiB; from there on a commit brings the log into the file itself, if nobody has done so (`checkpoint`)
_LOCKED_MILLISECONDS = 10  # the event loop stands still meanwhile; who holds a lock for longer is no part of mpsd
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

Write = tuple[str, tuple[Any, ...]]  # a statement and its values


def open_database(
    path: Path, schema: str, version: int, holds: str, upgrades: Mapping[int, str] = MappingProxyType({})
) -> sqlite3.Connection:
    """Every statement is its own transaction unless one is begun.  Raises UnusablePath.

    schema: made where there is none.  holds: what is in the file, for the refusal.  upgrades: what makes this version of an
    older one, by the older one.
    """
    try:
        path.touch(0o600)  # private from its first byte on
        path.chmod(0o600)
        database = sqlite3.connect(path, isolation_level=None)
    except (sqlite3.Error, OSError) as exc:
        raise _unusable(path, exc, holds) from None
    try:
        _prepare(database, path, schema, version, holds, upgrades)
    except BaseException:
        database.close()  # Python 3.13 warns about a connection that is left to the garbage collector
        raise
    database.execute(f"PRAGMA busy_timeout={_LOCKED_MILLISECONDS}")  # at the start it may take SQLite's 5 s
    database.execute("PRAGMA synchronous=OFF")
    return database


def _prepare(
    database: sqlite3.Connection,
    path: Path,
    schema: str,
    version: int,
    holds: str,
    upgrades: Mapping[int, str],
) -> None:
    """Set the connection's modes, check the file, and make or upgrade its tables.  Raises UnusablePath."""
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
        found = database.execute("PRAGMA user_version").fetchone()[0]
        said = database.execute("PRAGMA quick_check(1)").fetchone()[0]  # 33 ms for 100,000 rows
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version={version}; COMMIT;")
        elif found in upgrades:
            database.executescript(f"BEGIN IMMEDIATE; {upgrades[found]} PRAGMA user_version={version}; COMMIT;")
            found = version
    except (sqlite3.Error, OSError) as exc:
        raise _unusable(path, exc, holds) from None
    if said != "ok":
        raise UnusablePath(f"{path} cannot be used: {said.splitlines()[-1]}; it holds {holds}{_way_out(path)}")
    if found not in (0, version):
        raise UnusablePath(
            f"{path} has version {found}, this mpsd reads {version}: quit the mpsd that wrote it first; "
            f"where that is down, start it once more to quit it"
        )


def _unusable(path: Path, exc: Exception, holds: str) -> UnusablePath:
    is_damaged = getattr(exc, "sqlite_errorcode", None) in _DAMAGED
    return UnusablePath(f"{path} cannot be used: {exc}; it holds {holds}{_way_out(path) if is_damaged else ''}")


def write(database: sqlite3.Connection, writes: Iterable[Write]) -> int:
    """All or nothing; the id of the last row that was inserted.  Raises sqlite3.Error, and what `writes` raises."""
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
    """Whoever closes last brings the log into the file and removes it, once the file is on the disk.  It waits for that."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA synchronous=FULL")
    database.close()


def open_beside(path: Path) -> sqlite3.Connection:
    """Another connection to one that is open, for `checkpoint`.  Raises UnusablePath."""
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as exc:
        raise UnusablePath(f"{path} cannot be opened once more: {exc}") from None
    database.execute("PRAGMA synchronous=FULL")  # of the log before the file, and of the file before the log is used again
    checkpoint(database)
    return database


def sync_log(path: Path) -> None:
    """Bring what was committed to the database at `path` to the disk.  Raises OSError.  For a thread: it waits for the disk.

    SQLite's locks are on the database and on its -shm: closing the log drops none of them.
    """
    descriptor = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint(database: sqlite3.Connection) -> None:
    """Brings what the log has into the file, as far as that can be now.  For a thread, and a connection of its own: whoever
    writes goes on meanwhile, and is told by the next commit what is wrong with the disk."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _way_out(path: Path) -> str:
    """With its log, which would be taken for the next file's."""
    return f". To start without it: mv {path}* elsewhere"
