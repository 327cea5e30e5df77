"""Which processes a cgroup holds, where its user may have made any number of cgroups below it."""

import os
from pathlib import Path

import pytest

from mpsd.stop import freezer
from mpsd.stop.freezer import CgroupFreezer


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
