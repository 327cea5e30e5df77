"""Threads without mpsd's descriptors."""

import os
import queue
import socket
import threading
from pathlib import Path

import pytest

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
