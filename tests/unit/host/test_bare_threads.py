"""Threads without mpsd's descriptors."""

import os
import queue
import signal
import socket
import threading
from pathlib import Path

import pytest

from mpsd.host import bare_threads
from mpsd.host.bare_threads import BareThreads


def test_a_thread_has_its_copy_of_the_socket_and_nothing_else_of_mpsds(tmp_path: Path) -> None:
    found: queue.SimpleQueue[tuple[int, dict[int, str]]] = queue.SimpleQueue()

    def work(descriptor: int) -> None:
        folder = f"/proc/self/task/{threading.get_native_id()}/fd"
        links = {number: os.readlink(f"{folder}/{number}") for number in map(int, os.listdir(folder)) if _is_open(number)}
        found.put((descriptor, links))

    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "file", "w"):
        bare.start(ours, work)
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


def test_without_a_further_thread_the_work_gets_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one gets its own: the order of sockets and work is kept."""
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    bare = BareThreads()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            bare.start(ours, found.put)
            assert found.get(timeout=10) == -1
        bare.start(ours, found.put)
        assert found.get(timeout=10) >= 0


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_may_have_its_own_table_that_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose seccomp filter refuses unshare(2), each start of mpsd stood still for 5 s."""

    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bare_threads, "leave_descriptor_table", refuse)
    monkeypatch.setattr(bare_threads, "_BEGIN_SECONDS", 600.0)
    with pytest.raises(PermissionError):
        BareThreads()


def test_a_signal_writes_nothing_to_a_clients_descriptor() -> None:
    """The signal that ends a wait wrote a byte to the number that wakes the event loop, which was a client's descriptor there:
    with a full pipe of the client mpsd would stand still, since the thread can have the interpreter's lock."""
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader, writer = os.pipe()
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    ours, theirs = socket.socketpair()

    def work(descriptor: int) -> None:
        sock = socket.socket(fileno=descriptor)
        taken = [sock.fileno(), *socket.recv_fds(sock, 1, 253, socket.MSG_PEEK)[1]]
        signal.pthread_kill(threading.get_ident(), signal.SIGWINCH)
        os.set_blocking(taken[1], False)
        os.write(taken[1], b"end")
        sock.detach()
        for each in taken:
            os.close(each)
        found.put(b"done")

    before, handler = signal.set_wakeup_fd(wakes.fileno()), signal.signal(signal.SIGWINCH, lambda number, frame: None)
    try:
        bare = BareThreads()
        with ours, theirs, woken, wakes:
            socket.send_fds(theirs, [b"x"], [writer] * 253)
            bare.start(ours, work)
            assert found.get(timeout=10) == b"done"
            assert os.read(reader, 16) == b"end"
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGWINCH, handler)
        os.close(reader)
        os.close(writer)
