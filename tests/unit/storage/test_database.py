"""mpsd's own SQLite files: private, written ahead, refused where they cannot be used.  All stores open theirs in this way."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.errors import UnusablePath
from mpsd.host import processes
from mpsd.storage.database import drop_locks, open_beside, open_database, write
from tests.integration.process import wait_for

SCHEMA = "CREATE TABLE words (word TEXT);"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


def opened(path: Path) -> sqlite3.Connection:
    return open_database(path, SCHEMA, 1, "some words")


def open_files(path: Path) -> list[str]:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(path))]


def test_it_is_private_and_so_are_the_files_beside_it(path: Path) -> None:
    """They contain tokens."""
    path.touch(0o644)
    write(opened(path), [("INSERT INTO words VALUES (?)", ("one",))])
    found = sorted(path.parent.iterdir())
    assert len(found) > 1
    assert {stat.S_IMODE(each.stat().st_mode) for each in found} == {0o600}


def test_it_is_written_ahead_and_no_commit_waits_for_the_disk(path: Path) -> None:
    database = opened(path)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (0,)  # OFF


def test_one_of_another_version_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    with pytest.raises(UnusablePath, match=rf"has version 99.*It holds some words. To start without it: mv {path}\*"):
        opened(path)


@pytest.mark.parametrize("content", [b"rubbish" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_what_is_no_database_is_refused_with_what_to_do(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UnusablePath, match=rf"cannot be used.*it holds some words.*To start without it: mv {path}\* elsewhere"):
        opened(path)


@pytest.mark.parametrize("damage", [bytes(4096), b"\xff" * 4096], ids=["zeros", "ones"])
@pytest.mark.parametrize("page", [0, 1])
def test_so_is_one_with_a_damaged_page(path: Path, page: int, damage: bytes) -> None:
    """At the start, and not at the first read."""
    database = opened(path)
    write(database, [("INSERT INTO words VALUES (?)", ("one",))])
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(damage)
    with pytest.raises(UnusablePath, match=r"cannot be used: .*To start without it"):
        opened(path)


def test_what_cannot_be_opened_now_is_not_said_to_be_damaged(path: Path) -> None:
    path.mkdir()
    for each in (path, path / "nowhere" / "some.db"):
        with pytest.raises(UnusablePath, match="cannot be used") as refusal:
            opened(each)
        assert "To start without it" not in str(refusal.value)


@pytest.mark.parametrize(
    ("version", "schema"),
    [pytest.param(7, "", id="another version"), pytest.param(0, "CREATE nonsense;", id="no room for its tables")],
)
def test_a_file_that_cannot_be_used_is_not_kept_open(version: int, schema: str, tmp_path: Path) -> None:
    """Also during the refusal, while its traceback keeps the function's variables alive."""
    path = tmp_path / "some.db"
    before = sqlite3.connect(path)
    before.execute(f"PRAGMA user_version={version}")
    before.close()
    with pytest.raises(UnusablePath) as refused:
        open_database(path, schema, 1, "nothing")
    assert refused.tb is not None
    assert open_files(path) == []


# Its first thread ends, and another keeps the descriptors, as one does that a file server keeps from ending after SIGKILL.
ENDS_WITH_LOCKS = """
import ctypes, os, sqlite3, sys, threading, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ends", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2): of this thread alone
"""


@pytest.mark.parametrize("statements", [["SELECT * FROM words"], ["BEGIN IMMEDIATE", "INSERT INTO words VALUES ('half')"]])
def test_locks_of_a_process_that_has_ended_hold_nothing_up(path: Path, statements: list[str]) -> None:
    """A user could make mpsd write all the time, and keep a thread of it from ending: killed then, it let none write later."""
    write(before := opened(path), [("INSERT INTO words VALUES (?)", ("one",))])
    command = [sys.executable, "-c", ENDS_WITH_LOCKS, str(path), *statements]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ends\n"
        wait_for("its first thread to end", lambda: processes.has_thread_ended(process.pid))
        before.close()  # this process's locks are not in question
        drop_locks(path.parent, processes.has_thread_ended)
        after = opened(path)
        write(after, [("INSERT INTO words VALUES (?)", ("two",))])
        assert open_beside(path).execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        process.kill()
    assert after.execute("SELECT word FROM words").fetchall() == [("one",), ("two",)]


def test_those_of_one_that_lives_stay(path: Path) -> None:
    opened(path).close()
    lives = ENDS_WITH_LOCKS.replace("ctypes.CDLL", "time.sleep(60)  # ")
    with subprocess.Popen([sys.executable, "-c", lives, str(path), "BEGIN IMMEDIATE"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        drop_locks(path.parent, processes.has_thread_ended)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write(opened(path), [("INSERT INTO words VALUES (?)", ("one",))])
        process.kill()
