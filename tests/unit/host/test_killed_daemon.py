"""A killed mpsd of which a thread waits for a user's file server: when nothing is open any more that it had open."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.host import file_servers
from mpsd.host.draining import STUCK_SECONDS
from mpsd.host.syscalls import thread_name

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("killed_daemons.py")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    ("case", "said", "aborted"),
    [
        pytest.param("sent", "closed", "1", id="its user's server is aborted"),
        pytest.param("overlay", "closed", "1", id="also where an overlay hides it"),
        pytest.param("unmounted", "closed", "[12]", id="also one for which that one waits"),
        pytest.param("directory", "closed", "[12]", id="also with another kind of descriptor"),
        pytest.param("strange", "open", "0", id="no other user's is"),
        pytest.param("serving", "open", None, id="none is while that mpsd serves"),
        pytest.param("queued", "closed", None, id="a bare thread has nothing of mpsd's"),
        pytest.param("unknown", "open", "0", id="another thread may have"),
    ],
)
def test_what_a_killed_mpsd_had_open(tmp_path: Path, case: str, said: str, aborted: str | None) -> None:
    """A user's server could keep it open for as long as the user liked, and arenas of other users without a writer.

    A mount that has ended may be gone before it is aborted, once the one for which it waited is.
    """
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    seconds = 3 * STUCK_SECONDS if said == "open" else 60
    directories = [tmp_path / name for name in ("mounted", "other", "control")]
    for each in directories:
        each.mkdir()
    program = [sys.executable, PROGRAM, *directories, case, str(seconds)]
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *program],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=80, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert done.stdout.splitlines()[-1:] == [said], done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "daemon.unfinished" in line]
    assert len(told) == (aborted is not None), done.stdout
    assert aborted is None or re.search(f"aborted_file_servers={aborted} ", told[0])


@pytest.mark.parametrize(("share", "found"), [(1000, 1000), (0xFFFFFFFE, 0xFFFFFFFE), (0, None), (-1, None)])
def test_the_name_of_a_thread_tells_whose_descriptors_it_closes(share: int, found: int | None) -> None:
    """Not if they are root's: its mounts serve the whole machine."""
    before = thread_name()
    with file_servers.closing(share):
        assert file_servers.named(thread_name().decode()) == found
    assert thread_name() == before
    assert file_servers.named("python3") is None
