"""A search through all processes, of which users hold some."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpsd.host import process_search, processes
from mpsd.host.process_reader import ProcessReader
from mpsd.host.process_search import search
from mpsd.model.process import ProcessId
from tests.held_directory import held


@contextmanager
def sleeping() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made.pid
        made.kill()


def ids(process: ProcessId, reader: ProcessReader) -> int | None:
    """Ask what no other program of the machine asks for: the kernel does not wait for a name that it has looked up before."""
    reader.text(process.pid, "uid_map")
    return process.pid


@pytest.mark.root
def test_processes_that_users_hold_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One held process of root's hid all of root's that came after it, so that lost daemons and keepers stayed, without a word
    in the log."""
    with ExitStack() as stack:
        pids = [stack.enter_context(sleeping()) for _ in range(2)]
        monkeypatch.setattr(process_search.os, "listdir", lambda path: [*map(str, pids), "self"])
        assert search(lambda name: True, ids) == (pids, "")
        more = [stack.enter_context(sleeping()) for _ in range(2)]
        for number, pid in enumerate(more):
            stack.enter_context(held(f"/proc/{pid}", tmp_path / str(number)))
        monkeypatch.setattr(process_search.os, "listdir", lambda path: [*map(str, more + pids), "self"])
        assert search(lambda name: True, ids) == (pids, f"processes that were not read (2): {more[0]}, {more[1]}")
        assert processes.reader.text(os.getpid(), "comm"), "nor are mpsd's own reads refused"


def test_one_that_has_gone_is_nothing_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping() as pid:
        pass
    monkeypatch.setattr(process_search.os, "listdir", lambda path: [str(pid), str(os.getpid())])
    assert search(lambda name: True, ids) == ([os.getpid()], "")
