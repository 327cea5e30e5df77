"""Database logs are checkpointed by a thread, and not by the committing task."""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.storage import checkpointing as module
from mpsd.storage.checkpointing import SECONDS, Checkpointing
from mpsd.storage.database import checkpoint, open_beside, open_database
from tests.descriptors import descriptors
from tests.running import running

SCHEMA = "CREATE TABLE words (number INTEGER PRIMARY KEY, word TEXT);"
SQLITES_OWN_PAGES = 1000  # of a log, from which on it would bring it into the file in a commit


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = open_database(tmp_path / "words.db", SCHEMA, 1, "words")
    made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield made
    made.close()


def write(database: sqlite3.Connection, pages: int) -> None:
    """Commits that fill so many pages of the log, at least."""
    for number in range(pages // 2):
        database.execute("INSERT INTO words VALUES (?, ?)", (number, "x" * 8000))


def stored(path: Path) -> int:
    """Return bytes of the file itself, and not of its log."""
    return path.stat().st_size


def test_no_commit_brings_the_log_into_the_file(database: sqlite3.Connection, tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    with closing(open_beside(path)) as beside:
        before = stored(path)
        write(database, SQLITES_OWN_PAGES + 200)
        assert stored(path) == before
        checkpoint(beside)
    assert stored(path) > SQLITES_OWN_PAGES * 4096
    assert database.execute("SELECT count(*) FROM words").fetchone() == ((SQLITES_OWN_PAGES + 200) // 2,)


def test_a_checkpoint_waits_for_no_writer_nor_holds_one_up(database: sqlite3.Connection, tmp_path: Path) -> None:
    with closing(open_beside(tmp_path / "words.db")) as beside:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO words VALUES (1, 'one')")
        checkpoint(beside)
        database.execute("COMMIT")
    assert database.execute("SELECT word FROM words").fetchall() == [("one",)]


async def test_what_was_written_is_brought_in_after_a_while_and_once(
    database: sqlite3.Connection, tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[int] = []  # how large the file was then
    path = tmp_path / "words.db"

    def bring(beside: sqlite3.Connection) -> None:
        checkpoint(beside)
        brought.append(stored(path))

    monkeypatch.setattr(module, "checkpoint", bring)
    before, held = stored(path), descriptors()
    with closing(Checkpointing(tmp_path)) as made:
        more = descriptors()
        write(database, 40)
        async with running(made.run):
            await pass_(mock_clock, lambda: len(brought) == 1)
            assert brought[0] > before
            await pass_(mock_clock, lambda: True)
            os.utime(tmp_path / "words.db-wal", ns=(1, 1))  # as any write does, within milliseconds
            await pass_(mock_clock, lambda: len(brought) == 2)
            assert descriptors() == more
    assert held < more


async def pass_(clock: trio.testing.MockClock, is_done: Callable[[], bool]) -> None:
    """Wait for one round; the thread's work takes real time in addition."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(SECONDS)
    until = time.monotonic() + 5
    await trio.testing.wait_all_tasks_blocked()
    while not is_done():
        assert time.monotonic() < until
        await trio.lowlevel.checkpoint()


async def test_a_disk_that_fails_ends_nothing(
    database: sqlite3.Connection, tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def stat(path: Path, **more: object) -> os.stat_result:
        asked.append(path)
        raise OSError(errno.EIO, "Input/output error")

    with closing(Checkpointing(tmp_path)) as made:
        monkeypatch.setattr(Path, "stat", stat)
        async with running(made.run):
            for _ in range(3):
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(SECONDS)
            await trio.testing.wait_all_tasks_blocked()
        monkeypatch.undo()
    assert len(asked) > 2
