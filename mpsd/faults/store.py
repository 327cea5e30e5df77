"""Incidents and blame on disk: SQLite with a write-ahead log.

Every method is one transaction; once it has returned, its writes survive a `kill -9`.  The file is mpsd's own and private,
since it names culprits.  It is only about the past: a failed write is logged, and mpsd continues.  Numbers are never reused,
although incidents are removed.  Prose: docs/faults.md.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec import MsgspecError

from mpsd.errors import UnusablePath
from mpsd.faults.rules.blame_state import BlameState
from mpsd.faults.rules.incident_json import blame_of, blame_text, incident_of, incident_text
from mpsd.model.fault import Incident
from mpsd.storage.database import Write, close, open_database, read, write

log = structlog.get_logger()
SCHEMA_VERSION = 1
KEPT = 10_000
_PAGE = 16
_MOST_NUMBER = 2**63 - 1
_SCHEMA = """
CREATE TABLE incidents (number INTEGER PRIMARY KEY AUTOINCREMENT, revision INTEGER NOT NULL, began_at REAL NOT NULL,
                        domain TEXT NOT NULL, gpu TEXT NOT NULL, class TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE blame (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
"""
_SAVE = """
INSERT INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET revision = excluded.revision, began_at = excluded.began_at, domain = excluded.domain,
    gpu = excluded.gpu, class = excluded.class, body = excluded.body WHERE excluded.revision > revision
"""
_FORGET = "DELETE FROM incidents WHERE number <= (SELECT MAX(number) FROM incidents) - ?"

Value = TypeVar("Value")


class FaultStore:
    """Guards one database file; used only from the trio thread.  Raises UnusablePath if it cannot be opened or read.

    kept: how far back, in numbers, incidents are kept.
    """

    def __init__(self, path: Path, kept: int = KEPT) -> None:
        self._path, self._kept = path, kept
        holds = "past faults and whom they are blamed on"
        self._db = open_database(path, _SCHEMA, SCHEMA_VERSION, holds)
        self._read = partial(read, self._db, path)

    def next_number(self) -> int:
        """Return the number of the next incident, which no earlier one has had."""
        rows = self._read("SELECT seq FROM sqlite_sequence WHERE name = 'incidents'")
        return int(rows[0][0]) + 1 if rows else 1

    def save(self, incident: Incident) -> bool:
        """Store an incident; do nothing if a newer revision is stored.  Returns False if it could not be written."""
        return self._write([*self._saving(incident)])

    def save_with_blame(self, incident: Incident, state: BlameState) -> bool:
        """Store both or neither: a conviction without its incident could not be explained."""
        return self._write([*self._saving(incident), _blame(state)])

    def save_blame(self, state: BlameState) -> bool:
        return self._write([_blame(state)])

    def incident(self, number: int) -> Incident | None:
        """Return the incident; None if it never existed, or is no longer kept."""
        rows = self._read("SELECT body FROM incidents WHERE number = ?", (number,))
        return self._incident(rows[0][0]) if rows else None

    def incidents(self, after: int = 0) -> Iterator[Incident]:
        """Yield incidents with larger numbers, in ascending order, reading little more than the caller takes."""
        return self._pages("number > ? ORDER BY number", after)

    def incidents_before(self, before: int | None = None) -> Iterator[Incident]:
        """Yield incidents with smaller numbers (None: all), the newest first, likewise."""
        return self._pages("number < ? ORDER BY number DESC", _MOST_NUMBER if before is None else before)

    def unsettled(self) -> Sequence[Incident]:
        """Return the incidents that an earlier mpsd left unsettled, the oldest first."""
        rows = self._read("SELECT body FROM incidents WHERE NOT json_extract(body, '$.is_settled') ORDER BY number")
        return [self._incident(body) for (body,) in rows]

    def blame(self) -> BlameState:
        rows = self._read("SELECT body FROM blame")
        return self._parsed(blame_of, rows[0][0]) if rows else BlameState()

    def close(self) -> None:
        close(self._db)

    def _saving(self, incident: Incident) -> Iterator[Write]:
        of = incident
        row = (of.number, of.revision, of.began_at, of.domain, of.gpu, of.fault_class.value, incident_text(of))
        yield _SAVE, row
        yield _FORGET, (self._kept,)

    def _pages(self, where: str, number: int) -> Iterator[Incident]:
        """Yield incidents page by page; writes between two pages do no harm."""
        while rows := self._read(f"SELECT number, body FROM incidents WHERE {where} LIMIT {_PAGE}", (number,)):
            yield from (self._incident(body) for _, body in rows)
            number = rows[-1][0]

    def _incident(self, body: str) -> Incident:
        return self._parsed(incident_of, body)

    def _parsed(self, parse: Callable[[str], Value], body: str) -> Value:
        try:
            return parse(body)
        except (ValueError, MsgspecError) as exc:
            raise UnusablePath(f"{self._path} holds what this mpsd cannot read: {exc!r}; it may be removed") from None

    def _write(self, writes: Sequence[Write]) -> bool:
        """Write in one transaction.  Returns False, having logged it, if that fails."""
        try:
            write(self._db, writes)
        except sqlite3.Error as exc:
            log.error("faults.not_stored", path=str(self._path), why=str(exc), effect="it is forgotten at a restart")
            return False
        return True


def _blame(state: BlameState) -> Write:
    return "INSERT OR REPLACE INTO blame VALUES (1, ?)", (blame_text(state),)
