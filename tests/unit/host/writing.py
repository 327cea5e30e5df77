"""What the tests of a file's writers share: the kernel's group on a directory, and programs that write to a file there."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from mpsd.host.file_writers import FileWriters

WRITE = "import sys; open(sys.argv[1], 'a').write('x')"


def pids(lineages) -> set[int]:
    return {lineage[0].pid for lineage in lineages}


@pytest.fixture
def writers(tmp_path):
    try:
        made = FileWriters(tmp_path)
    except OSError as exc:
        pytest.skip(f"no fanotify here: {exc}")
    yield made
    made.close()


@pytest.fixture
def taken(writers):
    """Take the writers of a path."""

    def take(path):
        with open(path, "rb") as file:
            return writers.take(file.fileno())

    return take


@pytest.fixture
def ended():
    """Run a Python program with arguments, and return its pid: it has ended, but no other process can have that pid yet."""
    with ExitStack() as programs:

        def run(program, *words) -> int:
            made = programs.enter_context(subprocess.Popen([sys.executable, "-c", program, *words]))
            assert os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT).si_status == 0
            return made.pid

        yield run
