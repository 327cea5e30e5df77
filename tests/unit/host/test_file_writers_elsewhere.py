"""Files that other processes use under names elsewhere, and what they hide: the writers of a file all the same."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.unit.host.writing import WRITE, ended, pids, taken, writers

__all__ = ["ended", "taken", "writers"]  # fixtures

pytestmark = pytest.mark.root


# Opens the file by a link in another directory, where mpsd sees nothing; writes to it, closes it, and removes the link.
WRITE_ELSEWHERE = """
import os, sys
os.mkdir(sys.argv[2])
os.link(sys.argv[1], f"{sys.argv[2]}/x")
with open(f"{sys.argv[2]}/x", "r+") as file:
    file.write("forged")
os.unlink(f"{sys.argv[2]}/x")
"""


HOLD = """
import sys
with open(sys.argv[1], "w") as file:
    print("open", flush=True)
    sys.stdin.read()
    file.write("genuine")
"""


def test_who_writes_to_it_by_a_name_elsewhere_is_known_too(tmp_path, writers, taken, ended):
    """A container's root could change the dump of a client in another container, and so convict that client."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout.readline() == "open\n"
        writers.drain()
        attacker = ended(WRITE_ELSEWHERE, tmp_path / "a", tmp_path / "d")
        client.stdin.close()
        os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
        assert pids(taken(tmp_path / "a")) == {client.pid, attacker}


@pytest.mark.parametrize("change", [
    pytest.param(lambda path: os.truncate(path, 3), id="without opening it"),
    pytest.param(lambda path: path.rename(path.with_name("b")).rename(path), id="its name, and back"),
])  # fmt: skip
def test_a_file_that_has_changed_since_its_last_close_has_no_known_writer(tmp_path, writers, taken, ended, change):
    ended(WRITE, tmp_path / "a")
    writers.drain()
    before = (tmp_path / "a").stat().st_ctime_ns
    while (tmp_path / "a").stat().st_ctime_ns == before:  # before Linux 6.13, for some milliseconds
        change(tmp_path / "a")
    assert taken(tmp_path / "a") == frozenset()


def test_a_later_file_with_the_inode_of_one_that_is_gone_is_another_file(tmp_path, writers, taken, ended):
    """It had the writers of the first one too."""
    ended(WRITE, tmp_path / "a")
    writers.drain()
    inode = (tmp_path / "a").stat().st_ino
    (tmp_path / "a").unlink()
    pid = ended(WRITE, tmp_path / "a")
    if (tmp_path / "a").stat().st_ino != inode:
        pytest.skip("the file system does not give the inode again")
    assert pids(taken(tmp_path / "a")) == {pid}


# An attacker makes a file elsewhere, opens it for writing, and gives it a name in the directory.
MAKE_ELSEWHERE = """
import os, socket, sys
name, directory = sys.argv[1:3]
os.mkdir(directory)
file = os.open(f"{directory}/x", os.O_CREAT | os.O_RDWR, 0o666)
if sys.argv[3] == "link":
    os.link(f"{directory}/x", name)
    os.unlink(f"{directory}/x")
else:
    os.rename(f"{directory}/x", name)
print(flush=True)
sys.stdin.readline()
os.write(file, b"forged")
"""
# It sends that file to a client, which has written to it too.
SEND_IT = MAKE_ELSEWHERE + """
with socket.socket(fileno=int(sys.argv[4])) as peer:
    socket.send_fds(peer, [b"x"], [file])
"""
# An attacker opens another file, and then this one with a lease: no process can open it for now.
LEASE_IT = """
import fcntl, os, signal, sys
print(flush=True)
sys.stdin.readline()
os.close(os.open(f"{sys.argv[1]}.other", os.O_CREAT | os.O_RDONLY, 0o666))
kept = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.readline()
"""


@contextmanager
def in_steps(program, *words, **options):
    """Start a program that prints a line and reads one after each step; yield a function that lets it go on to the next."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, *words], stdin=pipe, stdout=pipe, text=True, **options) as made:

        def go_on() -> int:
            made.stdin.write("\n")
            made.stdin.flush()
            made.stdout.readline()
            return made.pid

        assert made.stdout.readline() == "\n"
        yield go_on


@pytest.mark.parametrize("how", ["move", "link"])
def test_a_file_that_was_made_elsewhere_is_not_a_clients_alone(tmp_path, taken, ended, how):
    """An attacker wrote to it, and left its last close to a client that had opened it."""
    receive = WRITE + "; import socket; socket.socket(fileno=int(sys.argv[2])).recv(1)"  # the kernel closes the descriptor
    ends = socket.socketpair()
    with ends[0], ends[1]:
        words = [tmp_path / "a", tmp_path / "d", how, str(ends[0].fileno())]
        with in_steps(SEND_IT, *words, pass_fds=[ends[0].fileno()]) as go_on:
            attacker = go_on()
            words = [sys.executable, "-c", receive, tmp_path / "a", str(ends[1].fileno())]
            with subprocess.Popen(words, pass_fds=[ends[1].fileno()]) as client:
                os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
                assert pids(taken(tmp_path / "a")) == ({attacker, client.pid} if how == "link" else set())


def test_a_lease_hides_no_event(tmp_path, writers, taken, ended):
    """The kernel opened the file of each event, and read(2) does not tell of one that it could not open after the first: an
    attacker's use of a client's dump stayed unknown."""
    with in_steps(LEASE_IT, tmp_path / "a") as go_on:
        client = ended(WRITE, tmp_path / "a")
        writers.drain()
        attacker = go_on()
        writers.drain()
        go_on()
        assert pids(taken(tmp_path / "a")) == {client, attacker}
