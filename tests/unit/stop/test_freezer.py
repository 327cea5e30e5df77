"""What is frozen is thawed, also by the next mpsd; and which processes a cgroup holds, whose user made any number below it."""

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from structlog.testing import capture_logs

from mpsd.domains.store import SqliteStore
from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.stop import freezer
from mpsd.stop.freezer import CgroupFreezer, FreezerThreads, FrozenNotes, SignalFreezer, thaw_left
from mpsd.threads import run_in_thread
from tests.unit.vault.machine import until

T = TypeVar("T")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    (tmp_path / "state").mkdir()
    opened = SqliteStore(tmp_path / "state" / "mpsd.db")
    yield opened
    opened.close()


@pytest.fixture
def child() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "600"]) as started:
        process = processes.find(started.pid)
        assert process is not None
        yield process
        started.kill()


def stop(process: ProcessId, notes: SqliteStore | None = None) -> None:
    """Stop it as mpsd does, or as an operator does."""
    if notes is None:
        os.kill(process.pid, signal.SIGSTOP)
    else:
        pidfd = os.pidfd_open(process.pid)
        assert SignalFreezer(notes).freeze(process, pidfd) == ""
        os.close(pidfd)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def a_freezer(directory: Path, notes: FrozenNotes) -> CgroupFreezer:
    return CgroupFreezer(directory, notes, partial(FreezerThreads(lambda uid: uid).run, 1000))


def fill(directory: Path, pids: range) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


async def test_all_processes_of_a_cgroup_and_of_those_below(store: SqliteStore, tmp_path: Path) -> None:
    fill(tmp_path, range(10, 12))
    fill(fill(tmp_path / "a", range(20, 21)) / "b", range(30, 31))
    (tmp_path / "link").symlink_to("/")
    assert await a_freezer(tmp_path, store).pids() == {10, 11, 20, 30}


@pytest.mark.parametrize("shape", ["wide", "deep"])
async def test_more_cgroups_than_mpsd_looks_at(
    store: SqliteStore, tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's tree of 10,000 cgroups stopped the event loop for a second at each request."""
    looked_at = []
    scan = os.scandir
    monkeypatch.setattr(freezer.os, "scandir", lambda path: looked_at.append(path) or scan(path))
    inner = tmp_path
    for number in range(2 * freezer._MOST_CGROUPS):
        inner = fill((tmp_path if shape == "wide" else inner) / f"{number}", range(0))
    with pytest.raises(OSError, match="too long"):
        await a_freezer(tmp_path, store).pids()
    assert len(looked_at) <= freezer._MOST_CGROUPS


async def test_more_processes_than_mpsd_looks_at(store: SqliteStore, tmp_path: Path) -> None:
    fill(tmp_path, range(2 * freezer._MOST_PROCESSES))
    with pytest.raises(OSError, match="too long"):
        await a_freezer(tmp_path, store).pids()


def test_one_that_may_not_be_continued_keeps_no_other_frozen(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user can continue it and exec a setuid program; where mpsd is not root, the kernel then refuses SIGCONT."""
    sent: list[tuple[int, int]] = []

    def send(pidfd: int, number: int) -> None:
        if pidfd == 1 and number == signal.SIGCONT:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        sent.append((pidfd, number))

    monkeypatch.setattr(freezer.signal, "pidfd_send_signal", send)
    monkeypatch.setattr(freezer.processes, "state", lambda pid: "R")
    processes = [ProcessId(pid, 7) for pid in (1, 2)]
    freezing = SignalFreezer(store)
    for process in processes:
        assert freezing.freeze(process, process.pid) == ""
    freezing.thaw(processes)
    assert sent[-1] == (2, signal.SIGCONT)


async def test_what_a_killed_mpsd_stopped_is_continued_by_the_next(store: SqliteStore, child: ProcessId) -> None:
    stop(child, store)
    with capture_logs() as logs:
        await thaw_left(store)
    assert processes.state(child.pid) not in "tT"
    assert [(line["event"], line["what"]) for line in logs] == [("stop.thawed", str(child.pid))]
    assert store.frozen() == []


def test_what_mpsd_continued_is_not_continued_again(store: SqliteStore, child: ProcessId) -> None:
    freezing, pidfd = SignalFreezer(store), os.pidfd_open(child.pid)
    freezing.freeze(child, pidfd)
    freezing.thaw([child])
    os.close(pidfd)
    assert store.frozen() == []


@pytest.mark.parametrize("is_later", [False, True], ids=["an operator's", "of a later process"])
async def test_what_another_stopped_stays_so(store: SqliteStore, child: ProcessId, is_later: bool) -> None:
    if is_later:
        store.save_frozen(str(child.pid), child.start_time - 1)
    stop(child)
    await thaw_left(store)
    assert processes.state(child.pid) == "T"
    assert store.frozen() == []


def a_cgroup(path: Path, *, is_frozen: bool) -> Path:
    path.mkdir()
    (path / "cgroup.freeze").write_text(f"{is_frozen:d}\n")
    (path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    return path


async def test_a_cgroup_that_a_killed_mpsd_froze_is_thawed_by_the_next(store: SqliteStore, tmp_path: Path) -> None:
    ours, anothers = a_cgroup(tmp_path / "ours", is_frozen=False), a_cgroup(tmp_path / "anothers", is_frozen=True)
    assert await a_freezer(ours, store).freeze()
    assert not await a_freezer(anothers, store).freeze()
    await thaw_left(store)
    assert [(each / "cgroup.freeze").read_text().strip() for each in (ours, anothers)] == ["0", "1"]
    assert store.frozen() == []


async def test_a_later_cgroup_of_the_same_name_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    later = a_cgroup(tmp_path / "job", is_frozen=True)
    store.save_frozen(str(later), later.stat().st_ino + 1)
    store.save_frozen(str(tmp_path / "removed"), 1)
    await thaw_left(store)
    assert (later / "cgroup.freeze").read_text() == "1\n"
    assert store.frozen() == []


@pytest.fixture
def answered() -> Iterator[threading.Event]:
    """Return what a test sets for the kernel to answer; it does so after 20 s anyway, for a test whose event loop waits."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def waiting(tmp_path: Path, answered: threading.Event) -> Path:
    """Return a cgroup whose files wait until the kernel answers: pipes, which open when both ends are there."""
    files = [tmp_path / "cgroup.freeze", tmp_path / "cgroup.procs"]

    def answer() -> None:
        answered.wait(20)
        answered.set()
        ends = [os.open(file, os.O_RDWR) for file in files]
        for end in ends:
            os.write(end, b"1\n")
            os.close(end)

    for file in files:
        os.mkfifo(file)
    threading.Thread(target=answer).start()
    return tmp_path


async def test_the_event_loop_does_not_wait_for_the_kernel(
    store: SqliteStore, waiting: Path, answered: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user could hold the lock that cgroup.freeze takes."""
    monkeypatch.setattr(freezer, "_FREEZE_SECONDS", 0.1)
    monkeypatch.setattr(freezer, "_THAW_SECONDS", 0.1)
    assert not await a_freezer(waiting, store).freeze()
    with pytest.raises(TimeoutError):
        await a_freezer(waiting, store).pids()
    store.save_frozen(str(waiting), os.stat(waiting).st_ino)
    await thaw_left(store)
    assert not answered.is_set()
    assert store.frozen(), "the next mpsd tries again"


async def test_a_freeze_that_mpsd_did_not_wait_for_is_undone(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread thaws, when it goes on: the user has no other one left, since all of them wait."""
    monkeypatch.setattr(freezer, "_FREEZE_SECONDS", 0.1)
    monkeypatch.setattr(freezer, "_THAW_SECONDS", 0.1)
    only, cgroup, ended = trio.CapacityLimiter(1), a_cgroup(tmp_path / "job", is_frozen=False), list[object]()
    file, save = cgroup / "cgroup.freeze", store.save_frozen

    def save_and_wait(name: str, mark: int) -> None:
        save(name, mark)
        file.unlink()
        os.mkfifo(file)

    async def in_thread(function: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return function()
            finally:
                ended.append(function)

        return await run_in_thread(run, abandon_on_cancel=True, limiter=only)

    monkeypatch.setattr(store, "save_frozen", save_and_wait)
    assert not await CgroupFreezer(cgroup, store, in_thread).freeze()
    assert store.frozen(), "if mpsd ends before its threads, the next one thaws"
    pipe = os.open(file, os.O_RDWR)
    await until(lambda: len(ended) == 2)  # the look at first, and the freeze
    written = os.read(pipe, 9)
    os.close(pipe)
    assert written == b"10"


async def test_a_users_threads_are_few_also_when_mpsd_no_longer_waits_for_them() -> None:
    threads, answer = FreezerThreads(lambda uid: uid), threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(freezer._THREADS_OF_USER + 2):
            nursery.start_soon(threads.run, 1, answer.wait)
        assert await threads.run(2, lambda: "another user's") == "another user's"
        nursery.cancel_scope.cancel()
    assert {uid: own.borrowed_tokens for uid, own in threads._own.items()} == {1: freezer._THREADS_OF_USER}
    answer.set()
    assert not await threads.run(1, bool)
