"""Reads that may not wait: their results, and that a user whose processes block the reader delays no other user's."""

import errno
import fcntl
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from mpsd.fairness.uid_ranges import parse
from mpsd.host import process_reader, processes
from mpsd.host.inspector_messages import LinkedFile
from mpsd.host.process_reader import ProcessReader, Unanswered
from tests.unit.api.file_server import serve

# It answers like mpsd-inspector, but waits in the kernel where `{waits}` applies: its spawned child opens a FIFO that has no
# writer, and the kernel suspends the parent of such a child, as if it waited for a lock.
WAITER = """#!{python} -IS
import os, socket, struct, threading, time
requests = socket.socket(fileno=3)

def wait(seconds):
    threading.Timer(seconds, os.open, ({fifo!r}, os.O_WRONLY)).start()
    opens = (os.POSIX_SPAWN_OPEN, 0, {fifo!r}, os.O_RDONLY, 0)
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[opens]), 0)

socket.send_fds(requests, [bytes(8)], [os.open("/proc/self/status", os.O_RDONLY)])
while request := requests.recv(65536):
    pid = struct.unpack_from("=III", request)[2]
    {waits}
    requests.send(struct.pack("=iI", 0, 0) + str(pid).encode())
"""
# 5,000 threads, with the smallest stacks
CROWD = """
import _thread, signal
_thread.stack_size(32768)
for _ in range(5000):
    _thread.start_new_thread(signal.pause, ())
print("ready", flush=True)
signal.pause()
"""
READS = 200
NS_GET_ID = 2 << 30 | 8 << 16 | 0xB7 << 8 | 13  # linux/nsfs.h
MOST_NAMESPACES = 1000  # until an inode comes again
HOSTILE, NEIGHBOUR, OTHER = 1001, 1002, 2001  # as pids; their users:
USERS = {HOSTILE: 100, NEIGHBOUR: 100, OTHER: 200}
NATIVE = Path(__file__).parents[3] / "native"


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    monkeypatch.setattr(process_reader, "_START_SECONDS", 60.0)  # Python starts late on a busy machine
    monkeypatch.setattr(process_reader, "_directory", lambda pid: pid)  # the processes of USERS have not gone
    yield path
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # lets the children go
    except OSError as exc:
        assert exc.errno == errno.ENXIO  # none is left


def waiter(fifo: Path, waits: str) -> ProcessReader:
    program = fifo.with_name("waiter")
    program.write_text(WAITER.format(python=sys.executable, fifo=str(fifo), waits=waits))
    program.chmod(0o700)
    return ProcessReader(USERS.__getitem__, program)


@pytest.fixture
def reader() -> Iterator[ProcessReader]:
    made = ProcessReader(lambda _: 0)
    yield made
    made.close()


def test_what_the_kernel_says_of_a_process(reader: ProcessReader) -> None:
    with open(os.devnull) as null:
        pid = os.getpid()
        assert reader.stat(pid).split()[0] == str(pid).encode()
        assert reader.linked_file(pid, "exe").path == os.path.realpath(sys.executable)
        assert reader.linked_file(pid, "exe").identity == (os.stat(sys.executable).st_dev, os.stat(sys.executable).st_ino)
        assert reader.namespaces(pid) == (number_of("/proc/self/ns/pid"),)
        assert null.fileno() in reader.numbers(pid, [os.devnull])
        assert null.fileno() in reader.numbers(pid, ["null"])
        assert reader.linked_file(pid, "root").path == "/"
        with pytest.raises(OSError, match="EINVAL"):
            reader.linked_file(pid, "cwd")
        assert not reader.numbers(pid, ["/nothing"])


@contextmanager
def many_threads() -> Iterator[int]:
    """Yield the pid of a process with so many threads that their number shows."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", CROWD], stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            if made.stdout.readline() != b"ready\n":
                pytest.skip("a process may not have so many threads here")
            yield made.pid
        finally:
            made.kill()


def test_a_read_takes_no_longer_of_a_process_with_many_threads(reader: ProcessReader) -> None:
    """The kernel visits all of them for /proc/PID/stat: 0.5 ms with 10,000, while the event loop waited."""

    def spent(read: Callable[[int], object], pid: int) -> int:
        """Return the reader's time of the processor: unlike a wait, it does not grow with the load."""
        read(pid)
        schedstat = Path(f"/proc/{reader.pid}/schedstat")
        before = int(schedstat.read_text().split()[0])
        for _ in range(READS):
            read(pid)
        return int(schedstat.read_text().split()[0]) - before

    with many_threads() as pid:
        for read in (reader.stat, reader.cgroup):
            assert spent(read, pid) < 3 * spent(read, os.getpid())


@contextmanager
def first_of_a_namespace() -> Iterator[int]:
    """The first process of a new pid namespace, which ends with the block."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"\n"
        yield int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text())
        started.communicate()


def number_of(namespace: str) -> int:
    """Return the id that the kernel gives out once; before Linux 6.18 the inode."""
    with suppress(OSError), open(namespace) as file:
        [number] = struct.unpack("Q", fcntl.ioctl(file, NS_GET_ID, bytes(8)))
        return int(number)
    return os.stat(namespace).st_ino


@pytest.mark.root
def test_a_pid_namespace_does_not_get_the_number_of_one_that_has_ended(reader: ProcessReader) -> None:
    """Else a later container takes the arenas of an earlier one for its own: the kernel gives inodes out again."""
    if number_of("/proc/self/ns/pid") == os.stat("/proc/self/ns/pid").st_ino:
        pytest.skip("the kernel tells no ids of namespaces: Linux 6.18 and later do")
    inodes, numbers = set[int](), list[tuple[int, ...]]()
    while len(inodes) == len(numbers) < MOST_NAMESPACES:
        with first_of_a_namespace() as pid:
            inodes.add(os.stat(f"/proc/{pid}/ns/pid").st_ino)
            numbers.append(reader.namespaces(pid))
    assert len(inodes) < len(numbers) == len(set(numbers))


@pytest.mark.slow
@pytest.mark.root
def test_no_file_server_is_asked_for_the_files_of_a_process(tmp_path: Path, reader: ProcessReader) -> None:
    """It need not answer, and a reader that waits for it is not seen to wait: a caller would give up after 5 s."""
    with ExitStack() as mounted:
        try:
            server = mounted.enter_context(serve(tmp_path))
        except OSError as exc:
            pytest.skip(f"nothing can be mounted here: {exc}")
        identity = (os.stat(tmp_path).st_dev, os.stat(tmp_path).st_ino)
        pid = mounted.enter_context(inside(tmp_path))
        server.is_silent = True
        assert reader.linked_file(pid, "root") == LinkedFile(str(tmp_path), identity)
        assert not server.asked
        server.is_silent = False


@contextmanager
def inside(root: Path) -> Iterator[int]:
    """Yield a process that has this root directory."""
    words = [sys.executable, "-IS", "-c", "import os, sys; os.chroot(sys.argv[1]); print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen([*words, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"1\n"
        yield child.pid
        child.kill()


def test_of_one_that_has_gone_the_kernel_says_so(reader: ProcessReader) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    for read in (reader.stat, reader.namespaces, reader.children, reader.threads):
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            read(child.pid)
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        reader.numbers(child.pid, ["x"])
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        reader.linked_file(child.pid, "exe")
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        reader.text(child.pid, "status")


def test_a_reader_that_died_is_replaced(reader: ProcessReader) -> None:
    reader.stat(os.getpid())
    before = reader.pid
    pidfd = os.pidfd_open(before)
    os.kill(before, signal.SIGKILL)
    select.select([pidfd], (), (), 30)
    os.close(pidfd)
    assert reader.stat(os.getpid())
    assert reader.pid not in (0, before)


def test_a_reader_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch, reader: ProcessReader) -> None:
    monkeypatch.setattr(process_reader, "_DEADLINE_SECONDS", 0.1)
    reader.stat(os.getpid())
    before = reader.pid
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(Unanswered, match="does not run"):
        reader.stat(os.getpid())
    until_readable(reader, os.getpid())
    assert reader.pid not in (0, before)


def until_readable(reader: ProcessReader, pid: int) -> None:
    """What was killed ends within moments; until then the user's processes are not read."""
    for _ in range(1000):
        try:
            reader.stat(pid)
        except Unanswered as exc:
            assert exc.errno == errno.EBUSY
            select.select((), (), (), 0.01)
        else:
            return
    raise AssertionError("never readable again")


def test_a_user_who_keeps_the_reader_waiting_is_not_read_for_a_while(monkeypatch: pytest.MonkeyPatch, fifo: Path) -> None:
    reader = waiter(fifo, f"pid == {HOSTILE} and wait(600)")
    try:
        with pytest.raises(Unanswered) as raised:
            reader.stat(HOSTILE)
        assert raised.value.errno == errno.ETIMEDOUT
        with pytest.raises(Unanswered) as raised:
            reader.stat(NEIGHBOUR)
        assert raised.value.errno == errno.EBUSY
        assert reader.stat(OTHER) == str(OTHER).encode()
        monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
        until_readable(reader, NEIGHBOUR)
    finally:
        reader.close()


def test_short_waits_of_one_user_add_up(fifo: Path) -> None:
    """Each alone is shorter than what mpsd bears; a user with many processes could cause one after the other."""
    reader = waiter(fifo, f"pid == {HOSTILE} and wait(0.02)")
    try:
        answered = 0
        with suppress(Unanswered):
            while answered < 200 and reader.stat(HOSTILE):
                answered += 1
        assert answered < 200
        assert reader.stat(OTHER) == str(OTHER).encode()
    finally:
        reader.close()


def test_an_old_wait_makes_no_later_read_dear(monkeypatch: pytest.MonkeyPatch, fifo: Path) -> None:
    """Until the same user's processes were read again, each read of any process asked whose it is: up to 20 ms for one with
    65,536 groups, on the event loop."""
    reader = waiter(fifo, f"pid == {HOSTILE} and wait(0.02)")
    asked: list[int] = []

    def uid_of(pid: int) -> int:
        asked.append(pid)
        return USERS[pid]

    monkeypatch.setattr(reader, "_uid_of", uid_of)
    try:
        with suppress(Unanswered):
            reader.stat(HOSTILE)
        assert asked
        monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
        reader.stat(OTHER)
        asked.clear()
        reader.stat(OTHER)
        assert not asked
    finally:
        reader.close()


@pytest.mark.root
def test_a_process_is_asked_for_its_user_without_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_status", lambda *_: pytest.fail("its status lists up to 65,536 groups"))
    with subprocess.Popen(["sleep", "60"], user=65534) as child:
        try:
            for each in (processes.reader, processes.searcher, processes.cgroup_reader):
                assert (each._uid_of(child.pid), each._uid_of(os.getpid())) == (65534, 0)
        finally:
            child.kill()


# It opens so many descriptors of a directory with a path of nearly 4,096 bytes.
DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(1900):
    os.mkdir("d")
    os.chdir("d")
file = os.open(".", os.O_RDONLY)
for _ in range(int(sys.argv[2])):
    os.dup(file)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hoarder() -> Iterator[int]:
    """Yield a process with many descriptors that take long to list."""
    count = min(8000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    place = tempfile.mkdtemp(dir="/dev/shm")  # a short path, and mkdir costs little there
    words = [sys.executable, "-IS", "-c", DEEP, place, str(count)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "open\n"
    yield child.pid
    child.communicate()
    subprocess.run(["rm", "-rf", place], check=True)  # too deep for shutil


def test_a_search_has_an_end_and_counts_against_its_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hoarder: int) -> None:
    """65,536 descriptors with long paths took a search 1.8 s, again and again, and all other clients waited for it."""
    program = tmp_path / "inspector"
    build = ["make", "-C", str(NATIVE / "inspector"), f"OUT={program}", "CPPFLAGS_EXTRA=-DMPSD_INSPECTOR_FIND_MS=10"]
    subprocess.run(build, check=True, capture_output=True)
    reader = ProcessReader({hoarder: 100, os.getpid(): 200}.__getitem__, program)
    try:
        with pytest.raises(OSError, match="E2BIG"):
            reader.numbers(hoarder, ["/nothing"])
        with pytest.raises(Unanswered, match="too many descriptors"):
            reader.numbers(hoarder, ["/nothing"])
        with open(os.devnull) as null:
            assert null.fileno() in reader.numbers(os.getpid(), [os.devnull])
        monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
        with pytest.raises(OSError, match="E2BIG"):
            reader.numbers(hoarder, ["/nothing"])
    finally:
        reader.close()


def test_searches_of_one_user_add_up(fifo: Path) -> None:
    """Each alone ends in time; a user can have many processes, and connect again and again."""
    reader = waiter(fifo, f"if pid == {HOSTILE}: requests.send(struct.pack('=iI', 0, 100)); continue")
    try:
        answered = 0
        with suppress(Unanswered):
            while answered < 200 and reader.numbers(HOSTILE, ["x"]) == set():
                answered += 1
        assert answered == 5
        assert reader.numbers(OTHER, ["x"])
    finally:
        reader.close()


def test_the_uids_of_one_range_are_one_user(fifo: Path) -> None:
    reader = waiter(fifo, f"pid == {HOSTILE} and wait(600)")
    reader.count_by(parse("eve:100:101\n"))
    try:
        with pytest.raises(Unanswered):
            reader.stat(HOSTILE)
        with pytest.raises(Unanswered, match="uid 100 "):
            reader.stat(OTHER)
    finally:
        reader.close()


def test_a_forked_process_has_a_reader_of_its_own(reader: ProcessReader) -> None:
    """With its parent's, it could take the parent's answers."""
    reader.stat(os.getpid())
    before = reader.pid
    child = os.fork()
    if not child:
        is_good = reader.stat(os.getpid()).split()[0] == str(os.getpid()).encode() and reader.pid != before
        reader.close()
        os._exit(0 if is_good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.stat(os.getpid())
    assert reader.pid == before
