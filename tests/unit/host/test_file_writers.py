"""The writers of a file, as the kernel reports them."""

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpsd.host import file_writers, processes
from mpsd.host.file_writers import FileWriters
from mpsd.host.polling import is_readable
from tests.descriptors import descriptors
from tests.unit.host.writing import WRITE, ended, pids, taken, writers

__all__ = ["ended", "taken", "writers"]  # fixtures

pytestmark = pytest.mark.root


def write_and_be_reaped(path) -> int:
    """The pid of the process that wrote it."""
    with subprocess.Popen([sys.executable, "-c", WRITE, path]) as other:
        assert other.wait() == 0
    return other.pid


def test_the_writer_is_known_even_when_it_has_ended(tmp_path, taken, ended):
    pid = ended(WRITE, tmp_path / "a")
    [lineage] = taken(tmp_path / "a")
    assert [each.pid for each in lineage[:2]] == [pid, os.getpid()]
    assert lineage[0] == processes.find(pid, even_ending=True)
    assert taken(tmp_path / "a") == frozenset()


def test_a_writer_that_mpsd_saw_alive_is_known_when_its_pid_is_another_processs(tmp_path, writers, taken):
    program = "import sys; open(sys.argv[1], 'a').write('x'); print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "a"], stdin=pipe, stdout=pipe) as other:
        other.stdout.readline()
        writers.drain()
        writer = processes.find(other.pid)
        other.communicate()
    assert {lineage[0] for lineage in taken(tmp_path / "a")} == {writer}


SEND = """
import os, socket, sys
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)])
"""
RECEIVE = """
import socket, sys
if sys.argv[3:]:
    open(sys.argv[1], "a").close()
socket.socket(fileno=int(sys.argv[2])).recv(1)  # this receives no descriptor: the kernel closes it
"""


@pytest.fixture
def sent(tmp_path):
    """Let a process open tmp_path / "a" and send it to another one, which closes it; return both pids.

    own: a word if the other one has opened the file itself.
    """
    with ExitStack() as programs:

        def send(*own) -> list[int]:
            with ExitStack() as sockets:
                made = []
                for program, end in zip((SEND, RECEIVE), map(sockets.enter_context, socket.socketpair()), strict=True):
                    words = [sys.executable, "-c", program, tmp_path / "a", str(end.fileno()), *own]
                    made.append(programs.enter_context(subprocess.Popen(words, pass_fds=[end.fileno()])).pid)
                    os.waitid(os.P_PID, made[-1], os.WEXITED | os.WNOWAIT)
            return made

        yield send


def test_who_only_closes_the_file_of_another_has_not_written_it(tmp_path, taken, sent):
    """A container's root could accuse every client with its uid: it wrote a false dump, and sent the open file to a socket of
    the client, which closed it by reading a byte."""
    sent()
    assert taken(tmp_path / "a") == frozenset()


def test_who_closes_its_own_file_for_another_process_is_not_its_only_user(tmp_path, taken, sent):
    """An attacker could write to a client's dump, and leave the last close to that client: it seemed to be the only writer."""
    both = sent("own")
    assert pids(taken(tmp_path / "a")) == set(both)


def test_a_child_writes_what_its_parent_has_opened(tmp_path, taken):
    program = """if True:
        import os, sys
        file, (reads, says) = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600), os.pipe()
        if child := os.fork():
            os.close(file)
            os.write(says, b"x")
            os.waitpid(child, 0)
        else:
            os.read(reads, 1)
            os.write(file, b"x")
            os.close(file)
            print(os.getpid(), flush=True)
            sys.stdin.read()
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "a"], stdin=pipe, stdout=pipe, text=True) as parent:
        child = int(parent.stdout.readline())
        lineages = taken(tmp_path / "a")
        assert pids(lineages) == {child, parent.pid}
        assert parent.pid in [each.pid for lineage in lineages if lineage[0].pid == child for each in lineage]
        parent.stdin.close()


def test_a_later_process_with_its_pid_is_not_its_writer(tmp_path, taken):
    pid = write_and_be_reaped(tmp_path / "a")
    later = fork_with_pid(pid)
    if not later:
        pytest.skip(f"pid {pid} cannot be had again")
    try:
        assert taken(tmp_path / "a") == frozenset()
    finally:
        os.kill(later, signal.SIGKILL)
        os.waitpid(later, 0)


def test_a_process_that_was_reaped_is_no_known_writer(tmp_path, taken):
    """Only its pid was left, which another client could have by the time at which the dump was judged."""
    write_and_be_reaped(tmp_path / "a")
    assert taken(tmp_path / "a") == frozenset()


def fork_with_pid(pid) -> int:
    """The pid of a child that waits; 0 where that pid is not free.  clone3(2): set_tid."""
    set_tid = (ctypes.c_int * 1)(pid)
    arguments = struct.pack("10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(set_tid), 1)
    made = ctypes.CDLL(None).syscall(435, arguments, len(arguments))
    if made == 0:
        signal.pause()
    return max(made, 0)


def test_a_writer_is_known_while_mpsd_has_thousands_of_descriptors(tmp_path, taken, ended):
    """select(2) takes no descriptor above 1023, which mpsd has once some 150 clients run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while opened.enter_context(open(os.devnull, "rb")).fileno() < 1024:
            pass
        pid = ended(WRITE, tmp_path / "a")
        assert pids(taken(tmp_path / "a")) == {pid}


def test_several_writers_are_all_told(tmp_path, taken, ended):
    """A second one may have changed what the first one wrote."""
    both = {ended(WRITE, tmp_path / "a"), ended(WRITE, tmp_path / "a")}
    assert pids(taken(tmp_path / "a")) == both


def test_readers_are_told_too_but_not_mpsd_itself(tmp_path, taken, ended):
    """Whether a process opened the file to write, no event tells."""
    pid = ended(WRITE, tmp_path / "a")
    reader = ended("import sys; open(sys.argv[1]).read()", tmp_path / "a")
    (tmp_path / "a").read_text()
    assert pids(taken(tmp_path / "a")) == {pid, reader}


def test_a_file_that_was_deleted_is_not_remembered(tmp_path, writers):
    """Another file may reuse its inode."""
    (tmp_path / "a").write_text("x")
    (tmp_path / "a").unlink()
    writers.drain()
    assert not writers._found


def test_what_is_remembered_is_bounded_and_no_descriptor_stays(tmp_path, writers, monkeypatch):
    monkeypatch.setattr(file_writers, "_MOST_FILES", 3)
    before = descriptors()
    for number in range(200):
        (tmp_path / str(number)).write_text("x")
    writers.drain()
    assert len(writers._found) <= 3
    assert descriptors() <= before  # a thread may still be closing those of an earlier test


def close_many(directory, number=16_500) -> None:
    """Cause more events than the kernel keeps."""
    for each in range(number):
        os.close(os.open(directory / f"many.{each}", os.O_CREAT | os.O_WRONLY, 0o600))


def test_a_writer_whose_event_was_dropped_makes_no_other_the_sole_one(tmp_path, writers, taken, ended):
    """A user could forge the dump of another container's client, and convict it."""
    ended(WRITE, tmp_path / "a")
    close_many(tmp_path)
    ended(WRITE, tmp_path / "a")
    assert taken(tmp_path / "a") == frozenset()
    ended(WRITE, tmp_path / "a")
    assert taken(tmp_path / "a") == frozenset(), "it may have been open since before"
    pid = ended(WRITE, tmp_path / "b")
    assert pids(taken(tmp_path / "b")) == {pid}


def test_what_mpsd_forgets_it_watches_no_more(tmp_path, writers):
    """Else the kernel would keep every file in memory that a user makes, and moves elsewhere."""
    (tmp_path / "d").mkdir()
    with open(tmp_path / "a", "w"):
        writers.drain()
        writers._lose()
        (tmp_path / "a").rename(tmp_path / "d" / "a")
    assert not is_readable(writers.descriptor)
    (tmp_path / "a").write_text("x")
    assert is_readable(writers.descriptor)


def test_a_writer_whose_event_found_no_descriptor_makes_no_other_the_sole_one(tmp_path, writers, taken, ended):
    ended(WRITE, tmp_path / "a")
    writers.drain()
    ended(WRITE, tmp_path / "a")
    with no_descriptor():
        writers.drain()
    assert taken(tmp_path / "a") == frozenset()


@contextmanager
def no_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_flood_of_one_user_does_not_take_all_the_time(tmp_path, writers, monkeypatch):
    """16,000 events took 8 s, in which no dump of another user was judged.

    A look-up can take 40 ms for each user whose processes are held, and a read brings 40 events.
    """
    looked_up = []

    def look_up(pid, pidfd):
        looked_up.append(pid)
        time.sleep(0.01)
        return ()

    monkeypatch.setattr(file_writers, "_DRAIN_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(file_writers, "_lineage_of", look_up)
    before = descriptors()
    close_many(tmp_path, 500)
    writers.drain()
    assert len(looked_up) <= 11
    assert descriptors() <= before  # a thread may still be closing those of an earlier test


LEASE = """
import fcntl, os, signal, sys
os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o666))
kept = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"""


def test_no_lease_on_a_file_makes_mpsd_wait(tmp_path, taken, ended):
    """The kernel opens the file of each event: for up to 45 s, while its owner does not give up the lease."""
    with subprocess.Popen(
        [sys.executable, "-c", LEASE, tmp_path / "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "leased\n"
        pid = ended(WRITE, tmp_path / "b")
        found = []
        reader = threading.Thread(target=lambda: found.append(taken(tmp_path / "b")), daemon=True)
        reader.start()
        reader.join(10)
        waited = reader.is_alive()
        other.kill()
        reader.join()
    assert (list(map(pids, found)), waited) == ([{pid}], False)


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    before = descriptors()
    with pytest.raises(OSError, match="absent"):
        FileWriters(tmp_path / "absent")
    assert descriptors() <= before  # a thread may still be closing those of an earlier test


def test_a_file_system_without_handles_is_an_error():
    """A group there would tell of no file."""
    with pytest.raises(OSError, match="not supported"):
        FileWriters(Path("/proc/self/fd"))


def test_init_has_no_parent():
    assert [each.pid for each in file_writers._lineage(1)] == [1]
