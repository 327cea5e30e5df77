"""How a process of mpsd-inspector is started."""

import os
import queue
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mpsd.host import inspector_process
from mpsd.host.bare_threads import BareThreads
from mpsd.host.programs import own_program
from tests.integration.process import wait_for

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


def test_where_no_thread_can_be_started_only_the_first_caller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited 5 s, also the event loop; the thread that came at last started a process for each, which stayed a zombie."""
    spawned: list[object] = []
    monkeypatch.setattr(inspector_process, "_SPAWN_SECONDS", 0.5)
    monkeypatch.setattr(os, "posix_spawn", lambda *arguments, **more: spawned.append(arguments) or os.getpid())
    bare, none = BareThreads(), OSError("can't start new thread")
    with monkeypatch.context() as patch:
        patch.setattr(bare, "_add_thread", Mock(side_effect=none))
        with pytest.raises(TimeoutError):
            inspector_process.start(own_program("inspector"), "--fd", bare)
        monkeypatch.setattr(inspector_process, "_SPAWN_SECONDS", 60.0)
        with pytest.raises(BlockingIOError):
            inspector_process.start(own_program("inspector"), "--fd", bare)
    wait_for("a thread", lambda: not bare.is_short)
    done: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    bare.start([0], done.put)
    done.get(timeout=10)  # after the one that came first
    assert not spawned


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
