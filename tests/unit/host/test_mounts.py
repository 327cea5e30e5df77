"""A place is the same by every mount and link, and not the same for two directories that one path names."""

import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.host.mounts import place_of
from tests.integration.machine import ROOT

SAY = f"{sys.executable} -c 'import sys; from mpsd.host.mounts import place_of; print(place_of(sys.argv[1]))'"


def test_a_link_and_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    assert place_of(f"{tmp_path}/link/x/../pipe") == place_of(f"{tmp_path}/real/pipe") != place_of(f"{tmp_path}/other/pipe")
    before = place_of(f"{tmp_path}/real/pipe")
    (tmp_path / "real/pipe").mkdir(parents=True)
    assert place_of(f"{tmp_path}/real/pipe") == before


@pytest.mark.root
def test_mounts(tmp_path: Path) -> None:
    """Each line is of a place; the mount points' names need escapes in mountinfo."""
    script = f"""\
    set -e
    cd {tmp_path}
    mkdir -p 'a b/pipe' c 'point \\ 1'
    mount --bind 'a b' 'point \\ 1'
    {SAY} 'a b/pipe'
    {SAY} 'point \\ 1/pipe'
    mount --bind c 'point \\ 1'
    {SAY} c/pipe
    {SAY} 'point \\ 1/pipe'
    rmdir c && mkdir c
    {SAY} 'point \\ 1/pipe'
    mount -t tmpfs none c
    {SAY} c/pipe
    """
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    words = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    first, same, other, other_same, removed, new = done.stdout.splitlines()
    assert first == same != other == other_same == removed
    assert new not in (first, other)


@pytest.mark.root
def test_a_root_directory_without_a_mount_has_the_path_alone(tmp_path: Path) -> None:
    script = f"import os; from mpsd.host.mounts import place_of; os.chroot({str(tmp_path)!r}); print(place_of('/x/pipe'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "b'/x/pipe'\n"
