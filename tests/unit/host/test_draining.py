"""Connections with descriptors that are slow to close: what mpsd does about a FUSE server that takes no written page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.host import draining
from mpsd.host.draining import MOST_STUCK

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("stuck_drains.py")



def test_root_is_never_among_the_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root of a container could have all mounts of the host's root aborted."""
    stuck = {number: draining._Drain(uid, left=MOST_STUCK + 1) for number, uid in enumerate((0, 1000))}
    monkeypatch.setattr(draining, "_draining", stuck)
    assert draining._stuck(draining.STUCK_SECONDS + 1) == {1000: MOST_STUCK + 1}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(60)
@pytest.mark.parametrize(("connections", "alive", "aborted"), [(MOST_STUCK + 4, 0, 1), (MOST_STUCK, MOST_STUCK, 0)])
def test_a_silent_file_server_keeps_few_connections(tmp_path: Path, connections: int, alive: int, aborted: int) -> None:
    """Each kept a thread and a descriptor of mpsd until its server ended.  A server that keeps few is left alone."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    mounted, control = tmp_path / "mounted", tmp_path / "control"
    mounted.mkdir()
    control.mkdir()
    program = [sys.executable, str(PROGRAM), str(mounted), str(control), str(connections)]
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", *program],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert f"alive {alive}\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(f"aborted_file_servers={aborted} ") == (1 if aborted else 0), done.stdout
