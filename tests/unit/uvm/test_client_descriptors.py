"""Descriptors of other processes: found, duplicated, and the operator's message if that is impossible."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.host import processes
from mpsd.host.inspector_messages import MOST_TAKEN, Pair, Same
from mpsd.host.syscalls import device_number
from mpsd.uvm.client_descriptors import ProcessEnded, explained, take
from mpsd.uvm.space import Unavailable
from tests.inspecting import INSPECTOR

OPENER = "import os,sys; f=[os.open(sys.argv[1], os.O_RDONLY) for _ in range(int(sys.argv[2]))]; print('open'); input()"


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """Return a process with one file open ten times."""
    path = tmp_path / "file"
    path.write_text("what it holds")
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", OPENER, str(path), "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    child.stdout.readline()
    process = processes.process_id(child.pid)
    assert process is not None
    pidfd = processes.open_pidfd(process)
    assert pidfd is not None
    yield child, path, pidfd
    child.kill()
    child.communicate()
    os.close(pidfd)


def test_a_descriptor_is_found_by_its_link_and_shared(opener: tuple[subprocess.Popen[str], Path, int]) -> None:
    child, path, pidfd = opener
    found = take(INSPECTOR, child.pid, pidfd, ["/nothing", str(path)])
    assert len(found) == MOST_TAKEN
    (first, taken), (second, _), *_ = found
    try:
        assert os.read(taken, 100) == b"what it holds"
        assert not os.get_inheritable(taken)
        pairs = [Pair(taken, number, child.pid) for number in (first, second, 4000)]
        assert INSPECTOR.same_now(pairs) == [Same.IS_SAME, Same.OTHER, Same.OTHER]
        known = [Pair(each, number, child.pid) for number, each in found]
        found += take(INSPECTOR, child.pid, pidfd, [str(path)], known)
        assert len({number for number, _ in found}) == len(found) == 10
    finally:
        for _, each in found:
            os.close(each)
    assert take(INSPECTOR, child.pid, pidfd, ["/nothing"]) == []


def test_of_a_process_that_has_ended(opener: tuple[subprocess.Popen[str], Path, int]) -> None:
    child, _, pidfd = opener
    child.kill()
    child.communicate()
    with pytest.raises(ProcessEnded):
        take(INSPECTOR, child.pid, pidfd, ["/dev/null"])
    assert INSPECTOR.same_now([Pair(0, 0, child.pid)]) == [Same.OTHER]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPERM, "not permitted"),
        (errno.EACCES, "ptrace_scope"),
        (errno.ENOSYS, "Linux 5.6"),
        (errno.EMFILE, "no descriptor left"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_each_trouble_is_explained(number: int, words: str) -> None:
    found = explained(OSError(number, "x"))
    assert isinstance(found, Unavailable)
    assert words in str(found)


NOBODY = """
import os, sys
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.uvm.client_descriptors import take
from mpsd.uvm.space import Unavailable
pid = int(sys.argv[1]); pidfd = processes.open_pidfd(processes.process_id(pid))
os.setresuid(65534, 65534, 65534)
inspector = Inspector()
try: take(inspector, pid, pidfd, ["/dev/null"])
except Unavailable as exc: assert "not permitted" in str(exc)
else: raise SystemExit("it was allowed")
inspector.close()
"""


@pytest.mark.root
def test_another_user_may_not(opener: tuple[subprocess.Popen[str], Path, int]) -> None:
    """In a process of its own, which changes its user."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, str(opener[0].pid)], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_path_leads_to(tmp_path: Path) -> None:
    null = os.stat("/dev/null")
    assert device_number("/dev/null") == (0o020000, os.major(null.st_rdev), os.minor(null.st_rdev))
    assert device_number(str(tmp_path))[0] == 0o040000
    with pytest.raises(FileNotFoundError):
        device_number(str(tmp_path / "nothing"))
