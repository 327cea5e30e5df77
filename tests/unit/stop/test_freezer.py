"""Which processes a cgroup holds, where its user may have made any number of cgroups below it."""

import errno
import os
import signal
from pathlib import Path

import pytest

from mpsd.model.process import ProcessId
from mpsd.stop import freezer
from mpsd.stop.freezer import CgroupFreezer, SignalFreezer


def fill(directory: Path, pids: range) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


def test_all_processes_of_a_cgroup_and_of_those_below(tmp_path: Path) -> None:
    fill(tmp_path, range(10, 12))
    fill(fill(tmp_path / "a", range(20, 21)) / "b", range(30, 31))
    (tmp_path / "link").symlink_to("/")
    assert CgroupFreezer(tmp_path).pids() == {10, 11, 20, 30}


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_more_cgroups_than_mpsd_looks_at(tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's tree of 10,000 cgroups stopped the event loop for a second at each request."""
    looked_at = []
    scan = os.scandir
    monkeypatch.setattr(freezer.os, "scandir", lambda path: looked_at.append(path) or scan(path))
    inner = tmp_path
    for number in range(2 * freezer._MOST_CGROUPS):
        inner = fill((tmp_path if shape == "wide" else inner) / f"{number}", range(0))
    with pytest.raises(OSError, match="too long"):
        CgroupFreezer(tmp_path).pids()
    assert len(looked_at) <= freezer._MOST_CGROUPS


def test_more_processes_than_mpsd_looks_at(tmp_path: Path) -> None:
    fill(tmp_path, range(2 * freezer._MOST_PROCESSES))
    with pytest.raises(OSError, match="too long"):
        CgroupFreezer(tmp_path).pids()


def test_one_that_may_not_be_continued_keeps_no_other_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user can continue it and exec a setuid program; where mpsd is not root, the kernel then refuses SIGCONT."""
    sent: list[tuple[int, int]] = []

    def send(pidfd: int, number: int) -> None:
        if pidfd == 1 and number == signal.SIGCONT:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        sent.append((pidfd, number))

    monkeypatch.setattr(freezer.signal, "pidfd_send_signal", send)
    monkeypatch.setattr(freezer.processes, "state", lambda pid: "R")
    processes = [ProcessId(pid, 7) for pid in (1, 2)]
    freezing = SignalFreezer()
    for process in processes:
        assert freezing.freeze(process, process.pid) == ""
    freezing.thaw(processes)
    assert sent[-1] == (2, signal.SIGCONT)
