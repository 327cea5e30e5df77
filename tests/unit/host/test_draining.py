"""Connections with descriptors that are slow to close: what mpsd does about a FUSE server that takes no written page."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from mpsd.host import draining
from mpsd.host.bare_threads import BareThreads
from mpsd.host.draining import MOST_STUCK
from mpsd.host.polling import is_readable
from mpsd.model.process import Credentials
from tests.integration.process import wait_for

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("stuck_drains.py")


@pytest.fixture(autouse=True)
def no_bare_threads() -> Iterator[None]:
    """Leave none to later tests: they write signals to a descriptor of the event loop of here, which has ended then."""
    yield
    draining.begin(int, None)


@pytest.mark.parametrize(("uid", "has_share"), [(0, False), (0xFFFFFFFF, False), (1000, True)])
def test_only_users_have_file_servers_aborted(monkeypatch: pytest.MonkeyPatch, uid: int, has_share: bool) -> None:
    """Not root: root of a container could have all mounts of the host's root aborted.  Nor a TCP connection: the last uid."""
    draining.begin(int, BareThreads())
    monkeypatch.setattr(draining, "peer_credentials", lambda sock: Credentials(1, uid, uid))
    may_go, taken = threading.Event(), threading.Barrier(MOST_STUCK + 2)

    def wait(sock: socket.socket) -> bool:
        taken.wait(10)
        return not may_go.wait(10)

    monkeypatch.setattr(draining, "_discard_next", wait)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(MOST_STUCK + 1)]
    try:
        for ours, _ in pairs:
            draining.drain_soon([ours])
        taken.wait(10)
        late = time.monotonic() + draining.STUCK_SECONDS + 1
        with draining._lock:
            stuck = draining._stuck(late)
        assert stuck == ({uid: MOST_STUCK + 1} if has_share else {})
    finally:
        may_go.set()
        for _, theirs in pairs:
            theirs.close()
    wait_for("the threads to be through", lambda: not draining._under_way)


def test_a_thread_that_waits_keeps_no_other_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread had copies of all of mpsd's descriptors: as long as a file server liked, connections and GPU memory of
    others stayed open there."""
    draining.begin(int, BareThreads())
    may_go, waits = threading.Event(), threading.Event()

    def wait(sock: socket.socket) -> bool:
        waits.set()
        return not may_go.wait(30)

    monkeypatch.setattr(draining, "_discard_next", wait)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs, peer:
            draining.drain_soon([ours])
            assert waits.wait(10)
            others.close()
            assert is_readable(peer, 5), "the peer is not told that its connection was closed"
    finally:
        may_go.set()
    wait_for("the thread to be through", lambda: not draining._under_way)


def test_what_no_thread_takes_is_closed_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    draining.begin(int, BareThreads())
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(draining._bare, "start", _refuse)
        draining.drain_soon([pairs[0][0]])
        draining.drain_soon([pairs[1][0]])
    assert not draining._under_way
    draining.drain_soon([pairs[2][0]])
    assert not draining._left
    for _, theirs in pairs:
        with theirs:
            theirs.settimeout(10)
            assert not theirs.recv(1)


def test_while_file_servers_are_aborted_other_closes_are_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsd looks for a second which file servers of a user are silent, again and again, and the user decides for how long: in
    that time nobody's lingering sockets were interrupted."""
    draining.begin(int, BareThreads())
    may_go, aborts, interrupted = threading.Event(), threading.Event(), threading.Event()

    def abort(*_: object) -> int:
        aborts.set()
        may_go.wait(30)
        return 0

    def shake(thread: int, number: int) -> None:
        if aborts.is_set():
            interrupted.set()

    monkeypatch.setattr(draining.file_servers, "abort", abort)
    monkeypatch.setattr(draining, "_stuck", lambda now: {1000: MOST_STUCK + 1})
    monkeypatch.setattr(draining, "_discard_next", lambda sock: not may_go.wait(30))
    monkeypatch.setattr(draining.signal, "pthread_kill", shake)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            draining.drain_soon([ours])
            assert aborts.wait(10)
            assert interrupted.wait(10)
    finally:
        may_go.set()
    wait_for("the threads to be through", lambda: not draining._under_way and not draining._is_shaking)
    wait_for("the abort to be over", lambda: not draining._aborting.locked())


def _refuse(descriptors: Collection[int], work: object) -> None:
    raise BlockingIOError("its queue is full")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("connections", "alive", "aborted", "whom"),
    [
        (MOST_STUCK + 4, 0, 2, "all"),
        (MOST_STUCK + 4, 0, 2, "its user"),
        (MOST_STUCK + 4, 0, 2, "overlay"),
        (MOST_STUCK, MOST_STUCK, 0, "all"),
    ],
)
def test_a_silent_file_server_keeps_few_connections(
    tmp_path: Path, connections: int, alive: int, aborted: int, whom: str
) -> None:
    """Each kept a thread and a descriptor of mpsd until its server ended.  A server that keeps few is left alone.

    One that is for its user alone, as fusermount(1) mounts it, tells mpsd less, and so does one that an overlay hides: each
    kept them all.  So another silent one of the same user is aborted too.
    """
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    directories = [tmp_path / name for name in ("mounted", "other", "control")]
    for each in directories:
        each.mkdir()
    program = [sys.executable, str(PROGRAM), *map(str, directories), str(connections), whom]
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", *program],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert f"alive {alive}\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(f"aborted_file_servers={aborted} ") == (1 if aborted else 0), done.stdout
