"""The file that leases and grants are in."""

import threading

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import UnusablePath
from mpsd.host.boot_id import read_boot_id
from mpsd.leases.rows import Admitted
from mpsd.leases.rules.budgets import Owner
from mpsd.leases.rules.usage import ClientUsage
from mpsd.leases.store import LeaseStore
from mpsd.model.lease import DomainPolicy, Grant, Lease, LeaseSpec, LeaseState, Selector, SelectorKind
from mpsd.model.process import Credentials, ProcessId

SPEC = LeaseSpec(
    name="trainer «1»",
    selector=Selector(SelectorKind.PID, "42", 7),
    gpus=("GPU-a", "GPU-b"),
    sm_percent=33.3,
    memory_bytes={"GPU-a": 1 << 33},
    priority=1,
    domain=DomainPolicy.GROUP,
    group="g",
    processes=3,
    ttl_seconds=1.5,
    wait_seconds=2.5,
    level="batch",
)
DRAFT = Lease(0, 1000, SPEC, LeaseState.QUEUED, 1e9, 1e9 + 1.5, True)
PLAIN = Lease(0, 0, LeaseSpec("plain", Selector(SelectorKind.UID, "0")), LeaseState.ACTIVE, 0.0, None)
CLIENT = Admitted(
    ProcessId(42, 7),
    Credentials(42, 1000, 100),
    Grant("lease 1", 1, ("GPU-a",), 11.1, {"GPU-a": 1 << 31}, 1, DomainPolicy.OWN, "1"),
    ClientUsage(1, "lease:1", ("GPU-a",), Owner(1000, ("staff",)), 11_100_000, 11_000_000, {"GPU-a": 1 << 31}),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leases.db"


def test_what_was_written_is_there_for_the_next(path):
    """The first store was never closed: kill -9."""
    store = LeaseStore(path, "boot")
    first, second = store.add(DRAFT), store.add(PLAIN)
    store.admit(CLIENT)
    again = LeaseStore(path, "boot")
    assert again.leases() == [first, second]
    assert [first.id, second.id] == [1, 2]
    assert again.admitted() == [CLIENT]
    assert not again.is_new_boot


def test_an_id_is_never_used_twice(path):
    store = LeaseStore(path, "boot")
    ids = []
    for _ in range(3):
        ids.append(store.add(PLAIN).id)
        store.remove(ids)
    assert [*ids, LeaseStore(path, "boot").add(PLAIN).id] == [1, 2, 3, 4]


def test_a_change_is_there(path):
    store = LeaseStore(path, "boot")
    lease = replace(store.add(DRAFT), state=LeaseState.ACTIVE, expires_at=None, spec=replace(SPEC, ttl_seconds=None))
    store.change(lease)
    assert LeaseStore(path, "boot").leases() == [lease]


def test_leases_and_the_grant_of_a_process_go_together(path):
    store = LeaseStore(path, "boot")
    ids = [store.add(DRAFT).id for _ in range(3)]
    store.admit(CLIENT)
    store.remove(ids[:2], CLIENT.process)
    assert [lease.id for lease in store.leases()] == ids[2:]
    assert not store.admitted()
    store.remove([])


def test_a_grant_is_stored_once_for_each_process(path):
    store = LeaseStore(path, "boot")
    store.admit(CLIENT)
    store.admit(CLIENT)
    assert len(store.admitted()) == 1


def test_after_a_reboot_leases_stay_and_grants_are_gone(path):
    """The pids belong to other processes then."""
    store = LeaseStore(path, "boot")
    lease = store.add(PLAIN)
    store.admit(CLIENT)
    after = LeaseStore(path, "another boot")
    assert after.is_new_boot
    assert after.leases() == [lease]
    assert not after.admitted()
    assert not LeaseStore(path, "another boot").is_new_boot


def test_the_kernel_tells_which_boot_this_is():
    assert len(read_boot_id()) in (0, 36)


async def test_who_settles_waits_for_the_disk_and_commits_meanwhile_share_a_wait(path, monkeypatch):
    """A thread waits: the event loop goes on, and lets others commit."""
    may_go_on, threads = threading.Event(), []

    def sync(log):
        threads.append(threading.get_ident())
        assert may_go_on.wait(10)

    monkeypatch.setattr("mpsd.leases.store.sync_log", sync)
    store = LeaseStore(path, "boot")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            store.add(PLAIN)
            nursery.start_soon(store.settled)
            await trio.testing.wait_all_tasks_blocked()
        may_go_on.set()
    assert len(threads) == 2  # one for the first; one for the two that were written meanwhile
    assert threading.get_ident() not in threads
    await store.settled()
    assert len(threads) == 2  # nothing was written since


async def test_a_disk_that_refuses_is_an_error(path):
    store = LeaseStore(path, "boot")
    store.add(PLAIN)
    log = path.with_name(f"{path.name}-wal")
    log.unlink()
    log.symlink_to(log)  # a loop, which cannot be opened; a log that is only missing is no error (app/removed_state.py)
    with pytest.raises(UnusablePath, match="a power cut would undo it"):
        await store.settled()


def test_what_cannot_be_written_is_an_error_and_half_of_it_is_not_there(path):
    store = LeaseStore(path, "boot")
    lease = store.add(PLAIN)
    store.admit(CLIENT)
    store._db.execute("CREATE TRIGGER t BEFORE DELETE ON grants BEGIN SELECT RAISE(ABORT, 'disk'); END")
    with pytest.raises(UnusablePath, match="disk"):
        store.remove([lease.id], CLIENT.process)
    assert store.leases() == [lease]
    store._db.execute("PRAGMA query_only=1")  # as a full disk would
    with pytest.raises(UnusablePath, match="cannot be written"):
        store.add(PLAIN)
