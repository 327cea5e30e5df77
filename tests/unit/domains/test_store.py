"""The stored data that a restarted mpsd finds."""

import pytest

from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.domains.store import SqliteStore
from mpsd.errors import UnusablePath
from mpsd.model.domain import Defaults
from mpsd.model.process import ProcessId


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


def test_limits_that_cannot_be_stored_are_an_error_the_rest_is_not(path):
    store = SqliteStore(path)
    store._db.execute("PRAGMA query_only=1")  # as a full disk would
    store.save_log_position("/x", 1)
    with pytest.raises(UnusablePath, match="cannot be stored"):
        store.save_defaults(Defaults(50.0))


def test_a_process_keeps_its_channel_in_each_domain_when_the_disk_has_room_again(path):
    """The second row took the place of the first one, so a restarted mpsd placed another user beside that channel."""
    store, process = SqliteStore(path), ProcessId(7, 11)
    store._db.execute("PRAGMA query_only=1")  # as a full disk would
    store.save_member("d2", process, 1000)
    store.save_member("d3", process, 1000)
    store._db.execute("PRAGMA query_only=0")
    store.save_log_position("/x", 1)
    assert [store.members(each) for each in ("d2", "d3")] == [[(process, 1000)]] * 2
    assert store.left("d2") == [process]
