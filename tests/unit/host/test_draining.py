"""Connections with descriptors that are slow to close: what mpsd does about a FUSE server that takes no written page."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from mpsd.host import draining
from mpsd.host.draining import MOST_STUCK
from mpsd.host.polling import is_readable
from mpsd.host.syscalls import file_system_of

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("stuck_drains.py")



def test_root_is_never_among_the_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root of a container could have all mounts of the host's root aborted."""
    stuck = {number: draining._Drain(uid, left=MOST_STUCK + 1) for number, uid in enumerate((0, 1000))}
    monkeypatch.setattr(draining, "_draining", stuck)
    assert draining._stuck(draining.STUCK_SECONDS + 1) == {1000: draining._Stuck(MOST_STUCK + 1)}


def test_a_look_tells_the_file_systems_and_changes_nothing(tmp_path: Path) -> None:
    """mpsd's own descriptors stay open, the file gets none of them, and the message stays where it is."""
    draining.begin(int)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(tmp_path / "file", "w") as file:
        assert not draining._has_descriptors(ours)
        theirs.send(b"plain")
        assert not draining._has_descriptors(ours)
        assert ours.recv(8) == b"plain"
        socket.send_fds(theirs, [b"x"], [file.fileno(), ours.fileno()])
        assert draining._has_descriptors(ours)
        before, found = set(os.listdir("/proc/self/fd")), draining._Drain(1000)
        draining._look(ours, found)
        assert set(os.listdir("/proc/self/fd")) == before
        assert file_system_of(file.fileno()) in found.file_systems
        assert ours.recv(8) == b"x"
    while draining._draining:
        time.sleep(0.01)  # until the thread has closed its copies


def test_a_look_that_waits_keeps_no_other_descriptor_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thread that looked had copies of all of mpsd's descriptors, and to close one waits if it is a client's FUSE file: as
    long as its server liked, connections and GPU memory of others stayed open there."""
    draining.begin(int)
    may_go, close_all = threading.Event(), draining.close_all

    def waits(fds: Collection[int]) -> None:
        may_go.wait(30)
        close_all(fds)

    monkeypatch.setattr(draining, "close_all", waits)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with ours, theirs, peer, open(tmp_path / "file", "w") as file:
            socket.send_fds(theirs, [b"x"], [file.fileno()])
            found = draining._Drain(1000)
            draining._look(ours, found)
            assert found.file_systems
            others.close()
            assert is_readable(peer, 5), "the peer is not told that its connection was closed"
    finally:
        may_go.set()
    while draining._draining:
        time.sleep(0.01)


def test_who_has_too_many_looks_waiting_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = {number: draining._Drain(1000, left=1) for number in range(MOST_STUCK)}
    monkeypatch.setattr(draining, "_draining", drains)
    assert not draining._is_crowded(1000)
    drains[-1] = draining._Drain(1000, left=1)
    assert draining._is_crowded(1000)
    assert not draining._is_crowded(1001)
    drains.update((100 + number, draining._Drain(1000, left=1, is_look=True)) for number in range(draining._MOST_LOOKS))
    assert not draining._is_crowded(1000)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(60)
@pytest.mark.parametrize(("connections", "alive", "aborted"), [(MOST_STUCK + 4, 0, 1), (MOST_STUCK, MOST_STUCK, 0)])
def test_a_silent_file_server_keeps_few_connections(tmp_path: Path, connections: int, alive: int, aborted: int) -> None:
    """Each kept a thread and a descriptor of mpsd until its server ended.  A server that keeps few is left alone.

    So is another mount of the same uid: root of a container, which can take any uid, had those of the host's user aborted.
    """
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    directories = [tmp_path / name for name in ("mounted", "other", "control")]
    for each in directories:
        each.mkdir()
    program = [sys.executable, str(PROGRAM), *map(str, directories), str(connections)]
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", *program],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert f"alive {alive}\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(f"aborted_file_servers={aborted} ") == (1 if aborted else 0), done.stdout
