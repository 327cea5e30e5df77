"""Threads without mpsd's descriptors."""

import os
import queue
import signal
import socket
import threading
from pathlib import Path

import pytest

from mpsd.host import bare_threads
from mpsd.host.bare_threads import INTERRUPT, MOST_WAITING, BareThreads
from mpsd.host.descriptors import close_all
from tests.integration.process import wait_for


def test_a_thread_has_its_copy_of_the_socket_and_nothing_else_of_mpsds(tmp_path: Path) -> None:
    found: queue.SimpleQueue[tuple[int, dict[int, str]]] = queue.SimpleQueue()

    def work(descriptors: list[int]) -> None:
        folder = f"/proc/self/task/{threading.get_native_id()}/fd"
        links = {number: os.readlink(f"{folder}/{number}") for number in map(int, os.listdir(folder)) if _is_open(number)}
        found.put((*descriptors, links))

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "file", "w"):
        bare.start([ours.fileno()], work)
        descriptor, links = found.get(timeout=10)
        assert links.pop(descriptor) == os.readlink(f"/proc/self/fd/{ours.fileno()}")
        assert [links.pop(number) for number in range(3)] == [os.devnull] * 3
        assert len(links) == 1, f"beside the first thread's end of its socket: {links}"
        theirs.send(b"still open")
        assert ours.recv(16) == b"still open"


def _is_open(number: int) -> bool:
    """Whether the descriptor is open, and not the one that listed them."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_what_was_asked_waits_until_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last thread takes nothing, which could keep it for ever."""
    found: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    has_refused = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        has_refused.set()
        raise RuntimeError("can't start new thread")

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            bare.start([ours.fileno()], found.put)
            bare.start([theirs.fileno(), ours.fileno()], found.put)
            assert has_refused.wait(10)
            assert found.empty()
        assert sorted(len(found.get(timeout=10)) for _ in range(2)) == [1, 2]


def test_works_that_wait_keep_no_other_one_waiting() -> None:
    begun: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    may_end = threading.Event()

    def work(descriptors: list[int]) -> None:
        begun.put(threading.current_thread())
        may_end.wait(10)
        close_all(descriptors)

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threads = set()
        for _ in range(12):
            bare.start([ours.fileno()], work)
            threads.add(begun.get(timeout=10))
        assert len(threads) == 12
        may_end.set()
        wait_for("most of them to end", lambda: sum(each.is_alive() for each in threads) < MOST_WAITING, 10.0)
        bare.start([ours.fileno()], work)
        assert begun.get(timeout=10).is_alive()


def test_a_work_begins_no_thread_if_one_waits() -> None:
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(descriptors: list[int]) -> None:
        close_all(descriptors)
        done.put(threading.get_ident())

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threads = set()
        for _ in range(20):
            bare.start([ours.fileno()], work)
            threads.add(done.get(timeout=10))
            wait_for("both threads to wait", lambda: bare._waiting == 2, 10.0)
    assert len(threads) <= 2


def test_where_no_thread_may_have_its_own_table_that_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose seccomp filter refuses unshare(2), each start of mpsd stood still for 5 s."""

    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bare_threads, "leave_descriptor_table", refuse)
    monkeypatch.setattr(bare_threads, "_BEGIN_SECONDS", 600.0)
    with pytest.raises(PermissionError):
        BareThreads()


def test_a_signal_to_mpsd_is_not_taken_by_such_a_thread() -> None:
    """It would write to its own /dev/null, and the event loop would sleep on."""
    found: queue.SimpleQueue[set[int]] = queue.SimpleQueue()

    def work(descriptors: list[int]) -> None:
        close_all(descriptors)
        found.put({int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])})

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bare.start([ours.fileno()], work)
        blocked = found.get(timeout=10)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1} <= blocked
    assert INTERRUPT not in blocked


def test_a_signal_writes_nothing_to_a_clients_descriptor() -> None:
    """The signal that ends a wait wrote a byte to the number that wakes the event loop, which was a client's descriptor there:
    with a full pipe of the client mpsd would stand still, since the thread can have the interpreter's lock."""
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader, writer = os.pipe()
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    ours, theirs = socket.socketpair()

    def work(descriptors: list[int]) -> None:
        sock = socket.socket(fileno=descriptors[0])
        taken = [sock.fileno(), *socket.recv_fds(sock, 1, 253, socket.MSG_PEEK)[1]]
        signal.pthread_kill(threading.get_ident(), INTERRUPT)
        os.set_blocking(taken[1], False)
        os.write(taken[1], b"end")
        sock.detach()
        for each in taken:
            os.close(each)
        found.put(b"done")

    before, handler = signal.set_wakeup_fd(wakes.fileno()), signal.signal(INTERRUPT, lambda number, frame: None)
    try:
        bare = BareThreads()
        with ours, theirs, woken, wakes:
            socket.send_fds(theirs, [b"x"], [writer] * 253)
            bare.start([ours.fileno()], work)
            assert found.get(timeout=10) == b"done"
            assert os.read(reader, 16) == b"end"
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(INTERRUPT, handler)
        os.close(reader)
        os.close(writer)
