"""What is frozen is thawed, also by the next mpsd; and which processes a cgroup holds, whose user made any number below it."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.domains.store import SqliteStore
from mpsd.host import inspector_messages as wire
from mpsd.host import processes
from mpsd.host.cgroup_directory import CgroupDirectory
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.model.process import ProcessId
from mpsd.stop import freezer
from mpsd.stop.freezer import CgroupFreezer, FrozenNotes, LeftFrozen, SignalFreezer, thaw_earlier
from tests.inspecting import INSPECTOR
from tests.leaderless import leaderless
from tests.unit.vault.machine import until


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


def a_freezer(directory: Path, notes: FrozenNotes, inspector: Inspector = INSPECTOR) -> CgroupFreezer:
    return CgroupFreezer(CgroupDirectory(directory, 1000, inspector), LeftFrozen(inspector, notes))


async def thaw(notes: FrozenNotes, inspector: Inspector = INSPECTOR) -> None:
    await thaw_earlier(notes, LeftFrozen(inspector, notes))


@pytest.fixture
def impatient() -> Iterator[Inspector]:
    made = Inspector(deadline_seconds=0.1)
    made.start()
    yield made
    made.close()


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
@pytest.mark.parametrize(("count", "is_refused"), [(255, False), (256, True)])
async def test_more_cgroups_than_mpsd_looks_at(
    store: SqliteStore, tmp_path: Path, shape: str, count: int, is_refused: bool
) -> None:
    """A user's tree of 10,000 cgroups stopped the event loop for a second at each request."""
    inner, top = fill(tmp_path / "t", range(0)), tmp_path / "t"
    for number in range(count):
        inner = fill((top if shape == "wide" else inner) / f"{number}", range(number, number + 1))
    if is_refused:
        with pytest.raises(OSError, match="E2BIG"):
            await a_freezer(top, store).pids()
    else:
        assert await a_freezer(top, store).pids() == set(range(count))


async def test_more_processes_than_mpsd_looks_at(store: SqliteStore, tmp_path: Path) -> None:
    fill(tmp_path, range(1024))
    assert await a_freezer(tmp_path, store).pids() == set(range(1024))
    fill(tmp_path, range(1025))
    with pytest.raises(OSError, match="E2BIG"):
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
        await thaw(store)
    assert processes.state(child.pid) not in "tT"
    assert [(line["event"], line["what"]) for line in logs] == [("stop.thawed", str(child.pid))]
    assert store.frozen() == []


async def test_so_is_one_whose_first_thread_has_ended(store: SqliteStore) -> None:
    """The next mpsd looked at that thread alone, let the process stay frozen, and forgot it."""
    with leaderless() as made:
        process = processes.find(made.pid)
        assert process is not None
        stop(process, store)
        await thaw(store)
        assert processes.state(made.pid) not in "tT"


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
    await thaw(store)
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
    await thaw(store)
    assert [(each / "cgroup.freeze").read_text().strip() for each in (ours, anothers)] == ["0", "1"]
    assert store.frozen() == []


async def test_a_later_cgroup_of_the_same_name_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    later = a_cgroup(tmp_path / "job", is_frozen=True)
    store.save_frozen(str(later), later.stat().st_ino + 1)
    store.save_frozen(str(tmp_path / "removed"), 1)
    await thaw(store)
    assert (later / "cgroup.freeze").read_text() == "1\n"
    assert store.frozen() == []


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """Return a cgroup whose files do not answer: pipes, which open when both ends are there."""
    for name in ("cgroup.freeze", "cgroup.procs"):
        os.mkfifo(tmp_path / name)
    return tmp_path


async def test_no_thread_of_mpsd_waits_for_a_cgroup(
    store: SqliteStore, held: Path, impatient: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user held the lock of the directory: mpsd's threads waited for it for ever, and not even SIGKILL ended mpsd then."""
    threads = set(os.listdir("/proc/self/task"))
    monkeypatch.setattr(freezer, "_THAW_SECONDS", 0.1)
    assert not await a_freezer(held, store, impatient).freeze()
    with pytest.raises(TimeoutError):
        await a_freezer(held, store, impatient).pids()
    store.save_frozen(str(held), os.stat(held).st_ino)
    with capture_logs() as logs:
        await thaw(store, impatient)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["stop.not_thawed"]
    assert store.frozen(), "it is tried again"
    assert set(os.listdir("/proc/self/task")) <= threads


async def test_a_cgroup_that_answers_again_is_thawed(
    store: SqliteStore, tmp_path: Path, impatient: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezer, "_THAW_SECONDS", 0.1)
    monkeypatch.setattr(freezer, "_AGAIN_SECONDS", 0.01)
    cgroup, left = a_cgroup(tmp_path / "job", is_frozen=False), LeftFrozen(impatient, store)
    freezing = CgroupFreezer(CgroupDirectory(cgroup, 1000, impatient), left)
    assert await freezing.freeze()
    (cgroup / "cgroup.freeze").rename(cgroup / "kept")
    os.mkfifo(cgroup / "cgroup.freeze")
    keep = os.open(cgroup / "cgroup.freeze", os.O_RDWR)  # a read of it waits
    assert not await freezing.thaw()
    assert store.frozen()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.run)
            (cgroup / "kept").rename(cgroup / "cgroup.freeze")
            await until(lambda: not store.frozen())
            nursery.cancel_scope.cancel()
    os.close(keep)
    assert (cgroup / "cgroup.freeze").read_text().strip() == "0"


async def test_a_cgroup_that_cannot_be_opened_now_is_not_forgotten(store: SqliteStore, tmp_path: Path) -> None:
    """mpsd forgot it after an error that it did not know, and its processes stayed frozen."""
    cgroup = a_cgroup(tmp_path / "job", is_frozen=True)
    store.save_frozen(str(cgroup), cgroup.stat().st_ino)
    left = LeftFrozen(INSPECTOR, store)
    (cgroup / "cgroup.freeze").rename(cgroup / "kept")
    (cgroup / "cgroup.freeze").symlink_to(cgroup / "cgroup.freeze")
    await thaw_earlier(store, left)
    assert store.frozen()
    (cgroup / "kept").rename(cgroup / "cgroup.freeze")
    await left.thaw_left()
    assert (cgroup / "cgroup.freeze").read_text().strip() == "0"
    assert not store.frozen()


async def test_a_freeze_that_mpsd_did_not_wait_for_is_undone(tmp_path: Path, impatient: Inspector) -> None:
    """Its write takes effect when the kernel lets it, and no signal ends it."""
    cgroup = CgroupDirectory(tmp_path, 1000, impatient)
    os.mkfifo(tmp_path / "cgroup.freeze")
    pipe = os.open(tmp_path / "cgroup.freeze", os.O_RDWR | os.O_NONBLOCK)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(pipe, b"x" * 4096)
    with pytest.raises(Unreadable):
        await cgroup.freeze(os.stat(tmp_path).st_ino)
    seen = b""

    def is_undone() -> bool:
        nonlocal seen
        with suppress(BlockingIOError):
            seen += os.read(pipe, 4096)
        return len(seen) == filled + 2

    with trio.fail_after(10):
        await until(is_undone)
    os.close(pipe)
    assert seen[filled:] == b"10"


async def test_the_cgroups_of_one_user_hold_no_more_than_the_users_share(held: Path) -> None:
    """A child that waits in the kernel stays until the user lets go."""
    patient = Inspector(deadline_seconds=20.0)
    patient.start()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(patient.ask_of, 1000, wire.InspectorOp.FREEZER, str(held))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Unreadable):
                await CgroupDirectory(held, 1000, patient).look()
            with pytest.raises(FileNotFoundError):
                await CgroupDirectory(held / "none", 1001, patient).look()
            nursery.cancel_scope.cancel()
    finally:
        patient.close()


def test_no_user_can_choose_the_share_of_anothers_cgroup_of_an_earlier_mpsd(store: SqliteStore) -> None:
    """It was the length of the path: a user with held cgroups of each length kept those of all others frozen."""
    jobs = [Path(f"/sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number}") for number in range(100, 200)]
    owners = [
        jobs[0],
        *map(Path("/sys/fs/cgroup").joinpath, [
            f"docker/{'a' * 64}",
            f"system.slice/docker-{'a' * 64}.scope",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice",
            "user.slice/user-1000.slice",
        ]),
    ]  # fmt: skip
    for path in (*jobs, *(owner / name / "y" for owner in owners for name in (*map(str, range(20)), "user@1000.service"))):
        store.save_frozen(str(path), 1)
    shares = {Path(name): cgroup.share for name, (cgroup, _) in LeftFrozen(INSPECTOR, store)._frozen.items()}
    assert len({shares[job] for job in jobs}) > 10
    for owner in owners:
        assert len({share for path, share in shares.items() if path.is_relative_to(owner)}) == 1


@pytest.mark.parametrize("mount", ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"])
def test_the_cgroups_of_earlier_sessions_have_a_share_for_each_user(store: SqliteStore, mount: str) -> None:
    """With version 1 mounted too, all users had one: a user with held cgroups kept those of all others frozen."""
    for uid in range(1000, 1100):
        for session in ("session-1.scope", f"user@{uid}.service"):
            store.save_frozen(f"{mount}/user.slice/user-{uid}.slice/{session}", 1)
    shares = {Path(name): cgroup.share for name, (cgroup, _) in LeftFrozen(INSPECTOR, store)._frozen.items()}
    assert len({*shares.values()}) > 10
    assert len({(path.parent, share) for path, share in shares.items()}) == 100
