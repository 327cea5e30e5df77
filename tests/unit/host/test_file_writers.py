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

import pytest

from mpsd.host import file_writers
from mpsd.host.file_identity import FileId
from mpsd.host.file_writers import FileWriters
from tests.descriptors import descriptors

pytestmark = pytest.mark.root


@pytest.fixture
def writers(tmp_path):
    try:
        made = FileWriters(tmp_path)
    except OSError as exc:
        pytest.skip(f"no fanotify here: {exc}")
    yield made
    made.close()


def file_id(path) -> FileId:
    found = path.stat()
    return found.st_dev, found.st_ino


def write_as_another(path) -> int:
    """The pid of the process that wrote it and has ended."""
    with subprocess.Popen([sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write('x')", path]) as other:
        assert other.wait() == 0
    return other.pid


def pids(lineages) -> set[int]:
    return {lineage[0] for lineage in lineages}


def test_the_writer_is_known_even_when_it_has_gone(tmp_path, writers):
    pid = write_as_another(tmp_path / "a")
    assert writers.take(file_id(tmp_path / "a")) == {(pid,)}
    assert writers.take(file_id(tmp_path / "a")) == frozenset()


def test_who_only_closes_the_file_of_another_has_not_written_it(tmp_path, writers):
    """A container's root could accuse every client with its uid: it wrote a false dump, and sent the open file to a socket of
    the client, which closed it by reading a byte."""
    reads = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "a", "w") as file:
        file.write("forged")
        file.flush()
        socket.send_fds(ours, [b"x"], [file.fileno()])
        found = file_id(tmp_path / "a")
        file.close()
        subprocess.run([sys.executable, "-c", reads, str(theirs.fileno())], pass_fds=[theirs.fileno()], check=True)
    assert writers.take(found) == frozenset()


def test_a_child_writes_what_its_parent_has_opened(tmp_path, writers):
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
        [lineage] = writers.take(file_id(tmp_path / "a"))
        assert lineage[:2] == (child, parent.pid)
        parent.stdin.close()


def test_a_later_process_with_its_pid_is_not_its_writer(tmp_path, writers):
    pid = write_as_another(tmp_path / "a")
    later = fork_with_pid(pid)
    if not later:
        pytest.skip(f"pid {pid} cannot be had again")
    try:
        assert writers.take(file_id(tmp_path / "a")) == {(pid,)}
    finally:
        os.kill(later, signal.SIGKILL)
        os.waitpid(later, 0)


def fork_with_pid(pid) -> int:
    """The pid of a child that waits; 0 where that pid is not free.  clone3(2): set_tid."""
    set_tid = (ctypes.c_int * 1)(pid)
    arguments = struct.pack("10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(set_tid), 1)
    made = ctypes.CDLL(None).syscall(435, arguments, len(arguments))
    if made == 0:
        signal.pause()
    return max(made, 0)


def test_a_writer_is_known_while_mpsd_has_thousands_of_descriptors(tmp_path, writers):
    """select(2) takes no descriptor above 1023, which mpsd has once some 150 clients run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while opened.enter_context(open(os.devnull, "rb")).fileno() < 1024:
            pass
        (tmp_path / "a").write_text("x")
        assert pids(writers.take(file_id(tmp_path / "a"))) == {os.getpid()}


def test_a_writer_that_is_there_has_parents(tmp_path, writers):
    (tmp_path / "a").write_text("x")
    (lineage,) = writers.take(file_id(tmp_path / "a"))
    assert lineage[0] == os.getpid()
    assert len(lineage) > 1


def test_several_writers_are_all_told(tmp_path, writers):
    """A second one may have changed what the first one wrote."""
    pid = write_as_another(tmp_path / "a")
    (tmp_path / "a").write_text("mine")
    assert pids(writers.take(file_id(tmp_path / "a"))) == {pid, os.getpid()}


def test_readers_are_no_writers(tmp_path, writers):
    pid = write_as_another(tmp_path / "a")
    (tmp_path / "a").read_text()
    assert pids(writers.take(file_id(tmp_path / "a"))) == {pid}


def test_a_file_that_was_deleted_is_not_remembered(tmp_path, writers):
    """Another file may reuse its inode."""
    (tmp_path / "a").write_text("x")
    gone = file_id(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert writers.take(gone) == frozenset()


def test_what_is_remembered_is_bounded_and_no_descriptor_stays(tmp_path, writers, monkeypatch):
    monkeypatch.setattr(file_writers, "_MOST_FILES", 3)
    before = descriptors()
    for number in range(200):
        (tmp_path / str(number)).write_text("x")
    assert writers.take((0, 0)) == frozenset()
    assert len(writers._found) <= 3
    assert descriptors() <= before  # a thread may still be closing those of an earlier test


def close_many(directory, number=16_500) -> None:
    """Cause more events than the kernel keeps."""
    for each in range(number):
        os.close(os.open(directory / f"many.{each}", os.O_CREAT | os.O_WRONLY, 0o600))


def test_a_writer_whose_event_was_dropped_makes_no_other_the_sole_one(tmp_path, writers):
    """A user could forge the dump of another container's client, and convict it."""
    pid = write_as_another(tmp_path / "a")
    close_many(tmp_path)
    (tmp_path / "a").write_text("forged")
    assert writers.take(file_id(tmp_path / "a")) == frozenset()
    write_as_another(tmp_path / "a")
    assert writers.take(file_id(tmp_path / "a")) == frozenset(), "it may have been open since before"
    writers._unsure_until = 0.0
    pid = write_as_another(tmp_path / "a")
    assert writers.take(file_id(tmp_path / "a")) == {(pid,)}


def test_a_writer_whose_event_found_no_descriptor_makes_no_other_the_sole_one(tmp_path, writers):
    write_as_another(tmp_path / "a")
    writers.drain()
    (tmp_path / "a").write_text("forged")
    with no_descriptor():
        writers.drain()
    assert writers.take(file_id(tmp_path / "a")) == frozenset()


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
    """16,000 events took 8 s, in which no dump of another user was judged."""
    looked_up = []

    def look_up(pid, pidfd):
        looked_up.append(pid)
        time.sleep(0.01)
        return (pid,)

    monkeypatch.setattr(file_writers, "_DRAIN_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(file_writers, "_lineage_of", look_up)
    before = descriptors()
    close_many(tmp_path, 500)
    writers.drain()
    assert len(looked_up) <= 128
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


def test_no_lease_on_a_file_makes_mpsd_wait(tmp_path, writers):
    """The kernel opens the file of each event: for up to 45 s, while its owner does not give up the lease."""
    with subprocess.Popen(
        [sys.executable, "-c", LEASE, tmp_path / "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "leased\n"
        pid = write_as_another(tmp_path / "b")
        taken = []
        reader = threading.Thread(target=lambda: taken.append(writers.take(file_id(tmp_path / "b"))), daemon=True)
        reader.start()
        reader.join(10)
        waited = reader.is_alive()
        other.kill()
        reader.join()
    assert (taken, waited) == ([{(pid,)}], False)


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match="fanotify"):
        FileWriters(tmp_path / "absent")


def test_an_orphan_is_nobodys_child_and_known_to_be_there():
    assert file_writers._lineage(1) == (1, 0)
