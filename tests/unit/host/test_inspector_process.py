"""How a process of mpsd-inspector is started."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpsd.host import inspector_process
from mpsd.host.bare_threads import BareThreads
from mpsd.host.programs import own_program

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("slow_exec.py")


def test_a_bare_thread_starts_it_with_nothing_of_mpsds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links: list[str] = []
    spawn = os.posix_spawn

    def note(*arguments: Any, **more: Any) -> int:
        for number in os.listdir("/proc/thread-self/fd"):
            with suppress(FileNotFoundError):  # that of the list itself
                links.append(os.readlink(f"/proc/thread-self/fd/{number}"))
        return spawn(*arguments, **more)

    monkeypatch.setattr(os, "posix_spawn", note)
    with open(tmp_path / "file", "w"):
        made = inspector_process.start(own_program("inspector"), "--fd", BareThreads())
    blocked = next(line for line in Path(f"/proc/{made.pid}/status").read_text().splitlines() if line.startswith("SigBlk"))
    made.kill()
    made.reap()
    assert links
    assert str(tmp_path / "file") not in links
    assert int(blocked.split()[1], 16) == 0, "the thread's mask of signals is not the program's"


def test_a_failure_in_a_bare_thread_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inspector_process.start(tmp_path / "none", "--fd", BareThreads())


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(60)
def test_a_clients_file_holds_up_no_new_one(tmp_path: Path) -> None:
    """All of mpsd stood still until the file server ended, if the inspector had to be replaced at that moment."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, str(PROGRAM), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert done.stdout == "answered\n", done.stdout + done.stderr
