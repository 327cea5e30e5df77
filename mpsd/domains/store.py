"""The state that outlives mpsd: SQLite with a write-ahead log, in the state directory.

Every method is one transaction, committed when it returns.  The file is in /run: it survives a restart of mpsd, and is removed
by a reboot, as the domains are.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.errors import UnusablePath
from mpsd.model.domain import Defaults
from mpsd.model.process import ProcessId
from mpsd.storage.database import close, open_database

log = structlog.get_logger()
SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE domains (name TEXT PRIMARY KEY, number INTEGER NOT NULL, gpus TEXT NOT NULL, is_public INTEGER NOT NULL,
                      key TEXT NOT NULL);
CREATE TABLE baselines (name TEXT PRIMARY KEY, by_server TEXT NOT NULL);
CREATE TABLE log_positions (path TEXT PRIMARY KEY, position INTEGER NOT NULL);
CREATE TABLE defaults (one INTEGER PRIMARY KEY CHECK (one = 1), thread_percent REAL NOT NULL, pinned_limits TEXT NOT NULL,
                       client_priority INTEGER NOT NULL);
CREATE TABLE members (pid INTEGER NOT NULL, start_time INTEGER NOT NULL, uid INTEGER NOT NULL, domain TEXT NOT NULL,
                      PRIMARY KEY (pid, start_time, domain));
CREATE TABLE frozen (name TEXT PRIMARY KEY, mark INTEGER NOT NULL);
"""
_MOST_UNWRITTEN = 4096  # a few rows of each domain
_Row = tuple[str, tuple[object, ...]]  # a statement, and the values that name its row
DomainRow = tuple[str, int, tuple[str, ...], bool, str]


class SqliteStore:
    """Guards one database file; used only from the trio thread.

    Rows about domains and logs only make a restart smoother: if they cannot be written, that is logged, and the daemon
    continues. Defaults are limits: if they cannot be written, the caller gets UnusablePath.
    """

    def __init__(self, path: Path) -> None:
        holds = "which fault domains run, whose clients end where mpsd starts without it"
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, holds)
        self.trouble = ""  # why the last write failed; "" if it did not
        self._unwritten: dict[_Row, tuple[object, ...]] = {}  # in order; each can be written again

    def domains(self) -> list[DomainRow]:
        rows = self._db.execute("SELECT name, number, gpus, is_public, key FROM domains ORDER BY number").fetchall()
        return [(name, number, tuple(json.loads(gpus)), bool(is_public), key) for name, number, gpus, is_public, key in rows]

    def save_domain(self, name: str, number: int, gpus: Iterable[str], is_public: bool, key: str = "") -> None:
        row = (name, number, json.dumps(list(gpus)), is_public, key)
        self._try("INSERT OR REPLACE INTO domains VALUES (?, ?, ?, ?, ?)", row)

    def forget_domain(self, name: str) -> None:
        self._try("DELETE FROM domains WHERE name = ?", (name,))
        self.forget_baselines(name)
        self.forget_members(name)
        self._try("DELETE FROM log_positions WHERE path LIKE ?", (f"%/{name}/log/%",))

    def members(self, name: str) -> list[tuple[ProcessId, int]]:
        """Return the processes that may have a channel in the domain, with their users; one can be in several."""
        rows = self._db.execute("SELECT pid, start_time, uid FROM members WHERE domain = ?", (name,)).fetchall()
        return [(ProcessId(pid, start_time), uid) for pid, start_time, uid in rows]

    def left(self, name: str) -> list[ProcessId]:
        """Return those of these processes that have a channel in another domain since."""
        newer = "newer.pid = members.pid AND newer.start_time = members.start_time AND newer.rowid > members.rowid"
        exists = f"EXISTS (SELECT 1 FROM members AS newer WHERE {newer})"
        rows = self._db.execute(f"SELECT pid, start_time FROM members WHERE domain = ? AND {exists}", (name,)).fetchall()
        return [ProcessId(pid, start_time) for pid, start_time in rows]

    def is_member(self, process: ProcessId) -> bool:
        statement = "SELECT 1 FROM members WHERE pid = ? AND start_time = ?"
        return self._db.execute(statement, (process.pid, process.start_time)).fetchone() is not None

    def save_member(self, name: str, process: ProcessId, uid: int) -> None:
        row = (process.pid, process.start_time, uid, name)
        self._try("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)", row, len(row))

    def forget_member(self, process: ProcessId) -> None:
        self._try("DELETE FROM members WHERE pid = ? AND start_time = ?", (process.pid, process.start_time), 2)

    def forget_members(self, name: str) -> None:
        self._try("DELETE FROM members WHERE domain = ?", (name,))

    def log_position(self, path: str) -> int | None:
        row = self._db.execute("SELECT position FROM log_positions WHERE path = ?", (path,)).fetchone()
        return row[0] if row else None

    def save_log_position(self, path: str, position: int) -> None:
        self._try("INSERT OR REPLACE INTO log_positions VALUES (?, ?)", (path, position))

    def baselines(self, name: str) -> dict[int, ClientLimits] | None:
        """Return the baseline limits by server; None: the domain's clients have no limits of their own."""
        row = self._db.execute("SELECT by_server FROM baselines WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        return {int(pid): ClientLimits(share, tuple(memory), rank) for pid, (share, memory, rank) in json.loads(row[0]).items()}

    def save_baselines(self, name: str, baselines: Mapping[int, ClientLimits]) -> None:
        """Store the baselines.

        Raises UnusablePath: after a restart mpsd would not know that the domain's clients have limits.
        """
        text = json.dumps({pid: (each.thread_percent, each.memory_bytes, each.priority) for pid, each in baselines.items()})
        try:
            self._db.execute("INSERT OR REPLACE INTO baselines VALUES (?, ?)", (name, text))
        except sqlite3.Error as exc:
            raise UnusablePath(f"the limits of domain {name} cannot be stored, and would be lost at a restart: {exc}") from None

    def forget_baselines(self, name: str) -> None:
        self._try("DELETE FROM baselines WHERE name = ?", (name,))

    def defaults(self) -> Defaults | None:
        row = self._db.execute("SELECT thread_percent, pinned_limits, client_priority FROM defaults").fetchone()
        return Defaults(row[0], json.loads(row[1]), row[2]) if row else None

    def save_defaults(self, defaults: Defaults) -> None:
        row = (defaults.thread_percent, json.dumps(dict(defaults.pinned_limits)), defaults.client_priority)
        try:
            self._db.execute("INSERT OR REPLACE INTO defaults VALUES (1, ?, ?, ?)", row)
        except sqlite3.Error as exc:
            raise UnusablePath(f"the limits cannot be stored, and would be lost at a restart: {exc}") from None

    def frozen(self) -> list[tuple[str, int]]:
        """Return what mpsd has frozen and not thawed yet, as stop/freezer.py names it; nothing while it cannot be read."""
        try:
            return self._db.execute("SELECT name, mark FROM frozen").fetchall()
        except sqlite3.Error as exc:
            self.trouble = str(exc)
            return []

    def save_frozen(self, name: str, mark: int) -> None:
        self._try("INSERT OR REPLACE INTO frozen VALUES (?, ?)", (name, mark))

    def forget_frozen(self, name: str) -> None:
        self._try("DELETE FROM frozen WHERE name = ?", (name,))

    def forget_all(self) -> None:
        """Delete all rows after `quit`, but for what is still frozen: the next daemon starts afresh, as the vendor's does."""
        for table in ("domains", "members", "baselines", "log_positions", "defaults"):
            self._try(f"DELETE FROM {table}", ())

    def _try(self, statement: str, values: tuple[object, ...], names: int = 1) -> None:
        """Write a row, and all that could not be written before.  names: how many of the first values name it."""
        row = (statement, values[:names])
        self._unwritten.pop(row, None)
        self._unwritten[row] = values
        if len(self._unwritten) > _MOST_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]
        try:
            while self._unwritten:  # earlier failed writes come first
                row = next(iter(self._unwritten))
                self._db.execute(row[0], self._unwritten[row])
                del self._unwritten[row]
            self.trouble = ""
        except sqlite3.Error as exc:
            self.trouble = str(exc)
            log.error("store.failed", statement=row[0], why=self.trouble)

    def close(self) -> None:
        close(self._db)
