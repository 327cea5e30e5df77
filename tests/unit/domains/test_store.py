"""The stored data that a restarted mpsd finds."""

import sqlite3

import pytest

from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.domains.store import SqliteStore
from mpsd.errors import UnusablePath
from mpsd.model.domain import Defaults


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mpsd.db"


def test_what_was_saved_is_there_after_a_restart(path):
    store = SqliteStore(path)
    store.save_domain("default", 1, ["GPU-a", "GPU-b"], True, "group:blue")
    store.save_baselines("default", {770: ClientLimits(50.0, (1 << 30, 0), 1)})
    store.save_log_position("/x/default/log/server.log", 4711)
    store.save_defaults(Defaults(25.0, {"GPU-a": 1 << 30}, 1))
    again = SqliteStore(path)  # the first was never closed: kill -9
    assert again.domains() == [("default", 1, ("GPU-a", "GPU-b"), True, "group:blue")]
    assert again.baselines("default") == {770: ClientLimits(50.0, (1 << 30, 0), 1)}
    assert again.baselines("d2") is None
    assert again.log_position("/x/default/log/server.log") == 4711
    assert again.defaults() == Defaults(25.0, {"GPU-a": 1 << 30}, 1)


def test_a_domain_takes_its_log_positions_with_it(path):
    store = SqliteStore(path)
    store.save_domain("d2", 2, [], False)
    store.save_log_position("/x/d2/log/server.log", 1)
    store.save_log_position("/x/default/log/server.log", 2)
    store.forget_domain("d2")
    assert store.domains() == []
    assert store.log_position("/x/d2/log/server.log") is None
    assert store.log_position("/x/default/log/server.log") == 2


def test_after_quit_nothing_is_left(path):
    store = SqliteStore(path)
    store.save_defaults(Defaults(50.0))
    store.forget_all()
    assert SqliteStore(path).defaults() is None


def test_the_file_is_private(path):
    SqliteStore(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_another_version_is_refused(path):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(UnusablePath, match="version 99"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused_and_what_to_do_is_said(path):
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(UnusablePath, match=rf"cannot be used.*it holds which .*To start without it: mv {path}\* elsewhere"):
        SqliteStore(path)


@pytest.mark.parametrize("damage", [bytes(4096), b"\xff" * 4096], ids=["zeros", "ones"])
@pytest.mark.parametrize("page", [1, 3])
def test_so_is_one_with_a_damaged_page(path, page, damage):
    """At the start, and not at the first read."""
    store = SqliteStore(path)
    store.save_domain("default", 1, ["GPU-a"], True)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(damage)
    with pytest.raises(UnusablePath, match=r"cannot be used: .*To start without it"):
        SqliteStore(path)


def test_what_cannot_be_opened_now_is_not_said_to_be_damaged(path):
    path.mkdir()
    with pytest.raises(UnusablePath) as refusal:
        SqliteStore(path)
    assert "To start without it" not in str(refusal.value)


def test_limits_that_cannot_be_stored_are_an_error_the_rest_is_not(path):
    store = SqliteStore(path)
    store._db.execute("PRAGMA query_only=1")  # as a full disk would
    store.save_log_position("/x", 1)
    with pytest.raises(UnusablePath, match="cannot be stored"):
        store.save_defaults(Defaults(50.0))
