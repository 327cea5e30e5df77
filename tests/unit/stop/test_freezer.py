"""What is frozen is thawed, also by the next mpsd; and which processes a cgroup holds, whose user made any number below it."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mpsd.domains.store import SqliteStore
from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.stop import freezer
from mpsd.stop.freezer import CgroupFreezer, SignalFreezer, thaw_left


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


def fill(directory: Path, pids: range) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


def test_all_processes_of_a_cgroup_and_of_those_below(store: SqliteStore, tmp_path: Path) -> None:
    fill(tmp_path, range(10, 12))
    fill(fill(tmp_path / "a", range(20, 21)) / "b", range(30, 31))
    (tmp_path / "link").symlink_to("/")
    assert CgroupFreezer(tmp_path, store).pids() == {10, 11, 20, 30}


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_more_cgroups_than_mpsd_looks_at(
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
        CgroupFreezer(tmp_path, store).pids()
    assert len(looked_at) <= freezer._MOST_CGROUPS


def test_more_processes_than_mpsd_looks_at(store: SqliteStore, tmp_path: Path) -> None:
    fill(tmp_path, range(2 * freezer._MOST_PROCESSES))
    with pytest.raises(OSError, match="too long"):
        CgroupFreezer(tmp_path, store).pids()


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


def test_what_a_killed_mpsd_stopped_is_continued_by_the_next(store: SqliteStore, child: ProcessId) -> None:
    stop(child, store)
    with capture_logs() as logs:
        thaw_left(store)
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
def test_what_another_stopped_stays_so(store: SqliteStore, child: ProcessId, is_later: bool) -> None:
    if is_later:
        store.save_frozen(str(child.pid), child.start_time - 1)
    stop(child)
    thaw_left(store)
    assert processes.state(child.pid) == "T"
    assert store.frozen() == []


def a_cgroup(path: Path, *, is_frozen: bool) -> Path:
    path.mkdir()
    (path / "cgroup.freeze").write_text(f"{is_frozen:d}\n")
    (path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    return path


async def test_a_cgroup_that_a_killed_mpsd_froze_is_thawed_by_the_next(store: SqliteStore, tmp_path: Path) -> None:
    ours, anothers = a_cgroup(tmp_path / "ours", is_frozen=False), a_cgroup(tmp_path / "anothers", is_frozen=True)
    assert await CgroupFreezer(ours, store).freeze()
    assert not await CgroupFreezer(anothers, store).freeze()
    thaw_left(store)
    assert [(each / "cgroup.freeze").read_text().strip() for each in (ours, anothers)] == ["0", "1"]
    assert store.frozen() == []


def test_a_later_cgroup_of_the_same_name_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    later = a_cgroup(tmp_path / "job", is_frozen=True)
    store.save_frozen(str(later), later.stat().st_ino + 1)
    store.save_frozen(str(tmp_path / "removed"), 1)
    thaw_left(store)
    assert (later / "cgroup.freeze").read_text() == "1\n"
    assert store.frozen() == []
