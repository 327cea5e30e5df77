"""The file systems on which the directory of core dumps may be: users can write to it."""

import subprocess
import sys

import pytest

from tests.unit.faults.sources.test_core_dump_file import SAMPLES

CULPRIT = SAMPLES["misaligned-culprit"]
# Makes the directory twice, as mpsd does at its start and at the next one.
MAKES = """
import sys
from pathlib import Path
from mpsd.errors import UnusablePath
from mpsd.faults.sources.core_dump_directory import CoreDirectory
path = Path(sys.argv[1])
for _ in range(2):
    try:
        CoreDirectory(path, 2, 1 << 24).close()
        print("made", end=" ")
    except UnusablePath as exc:
        print(exc, end=" ")
    print(f"{path.stat().st_mode & 0o7777:o}")
    path.chmod(0o1733)
"""
REFUSED, MADE = "users could fill this tmpfs, to which they cannot write elsewhere 700\n", "made 1733\n"


@pytest.mark.root
@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        pytest.param("mount -t tmpfs -o mode=755 none $0", REFUSED, id="as below /run"),
        pytest.param("mount -t tmpfs -o mode=1777 none $0", MADE, id="as below /tmp"),
        pytest.param("mount -t tmpfs -o mode=755 none $0/a/pipe", REFUSED, id="a tmpfs for the pipe directory"),
        pytest.param(
            "mount -t tmpfs -o mode=755 none $0; mkdir -p $0/a/pipe/cores; "
            "mount -t tmpfs -o size=8m,nr_inodes=64,mode=700 none $0/a/pipe/cores",
            MADE,
            id="a file system of its own",
        ),
    ],
)
def test_no_user_gets_a_way_to_fill_a_tmpfs_that_holds_more(tmp_path, mounts, said):
    """By directories in it, or by an open deleted file, any user filled /run, where mpsd keeps its state."""
    script = f'set -e; mkdir -p $0/a/pipe; {mounts}; mkdir -p $0/a/pipe; exec "$1" -c "$2" $0/a/pipe/cores'
    words = ["unshare", "--mount", "sh", "-c", script, tmp_path, sys.executable, MAKES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == said * 2


@pytest.mark.root
def test_a_dump_is_read_from_a_file_system_of_its_own(tmp_path):
    """As docs/faults.md has it mounted: there the writer is known too, and the dump is kept."""
    (tmp_path / "cores").mkdir()
    (tmp_path / "sample").write_bytes(CULPRIT)
    reads = """
import sys, trio
from pathlib import Path
from mpsd.faults.sources.core_dump_directory import CoreDirectory
from mpsd.host.file_writers import FileWriters
path = Path(sys.argv[1])
directory = CoreDirectory(path, 2, 1 << 24)
FileWriters(directory.place).close()
(path / "core.1").write_bytes(Path(sys.argv[2]).read_bytes())
(dump,) = directory.look(["core.1"])
print(dump.may_change, (path / dump.kept_as).stat().st_size)
"""
    script = 'mount -t tmpfs -o size=8m,nr_inodes=64,mode=700 none $0/cores && exec "$1" -c "$2" $0/cores $0/sample'
    words = ["unshare", "--mount", "sh", "-c", script, tmp_path, sys.executable, reads]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {len(CULPRIT)}\n"
