"""A user holds the lock of a directory below /proc: each look-up of a new name there waits, and no signal ends the wait."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsd.api.authority import peer_of
from mpsd.host import process_reader, processes
from mpsd.host.peers import caller_of, names_its_peer
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.model.process import ProcessId
from tests.held_directory import MOST_SECONDS, held

pytestmark = pytest.mark.root
USER, OTHER = 4321, 4322
READS = (
    processes.state, processes.owner, processes.sole_uid, processes.real_uid, processes.charged_uid, processes.uids,
    processes.parent, processes.command, processes.children, processes.pid_inside, processes.find, processes.lives,
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing counts against a user from an earlier test."""
    made = {name: ProcessReader(processes.effective_uid) for name in ("reader", "searcher", "cgroup_reader")}
    for name, each in made.items():
        monkeypatch.setattr(processes, name, each)
    yield
    for each in made.values():
        each.close()


@contextmanager
def sleeping(*uids: int) -> Iterator[int]:
    """Yield a process with these real, effective and saved uids."""
    code = f"import os, time; os.setresuid{uids}; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == b"\n"
            yield made.pid
        finally:
            made.kill()


@contextmanager
def quick() -> Iterator[None]:
    """Fail if the block waits for the lock: then it takes as long as that is held."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < MOST_SECONDS / 2


def make_wait(pid: int) -> None:
    """Ask what no other program of the machine asks for: the kernel does not wait for a name that it has looked up before."""
    with pytest.raises(Unanswered):
        processes.uids_to_take(pid)


@pytest.mark.parametrize("below", ["", "/task"])
def test_a_held_directory_of_a_process_delays_no_read(tmp_path: Path, below: str) -> None:
    """mpsd read status and comm itself, on its event loop, and stood still for as long as the user liked."""
    with sleeping(USER, USER, USER) as pid, sleeping(OTHER, OTHER, OTHER) as others:
        assert processes.reader.pid == 0
        with held(f"/proc/{pid}{below}", tmp_path / "mount"), quick():
            if not below:
                make_wait(pid)
            for read in READS:
                read(pid)
            assert processes.state(others) == "S"
            assert processes.lives(pid)
            assert (processes.owner(pid), processes.real_uid(pid)) == ((USER, os.getegid()), USER)


def test_a_held_program_of_roots_counts_as_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who started it is in its status, and a reader of that waited as well: 84 ms of the event loop in place of 40."""
    waited, give_up = list[int](), ProcessReader._give_up
    monkeypatch.setattr(ProcessReader, "_give_up", lambda *words: waited.append(words[2].share) or give_up(*words))
    with sleeping(USER, 0, 0) as pid, held(f"/proc/{pid}", tmp_path / "mount"), quick():
        make_wait(pid)
        assert waited == [0]
        assert processes.charged_uid(pid) == 0
        with pytest.raises(Unanswered, match=f"pid {pid} "):
            processes.reader.stat(pid)
        with pytest.raises(Unanswered, match="uid 0 "):
            processes.reader.stat(os.getpid())


@pytest.mark.parametrize("identify", [peer_of, caller_of])
def test_no_look_at_a_waiting_caller_reads_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identify: Callable[[socket.socket, None], object]
) -> None:
    """A look at each took 15 ms of the event loop, where root of a container had given it 65,536 groups."""
    read, status = list[int](), processes._status
    monkeypatch.setattr(processes, "_status", lambda pid, *by: read.append(pid) or status(pid, *by))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, sleeping(0, 0, 0) as pid, held(f"/proc/{pid}", tmp_path / "mount"), quick():
        make_wait(pid)
        for _ in range(7):
            with pytest.raises(Unanswered, match="uid 0 "):
                identify(ours, None)
        monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
        assert identify(ours, None)
        assert len(read) <= (not names_its_peer(ours))  # before Linux 6.5: whether it is still the user's that connected


def test_one_that_has_gone_is_not_unread(tmp_path: Path) -> None:
    """Its user is not known any more, so it counted as root's: an ended client was alive while root's were unread."""
    with sleeping(0, 0, 0) as pid, sleeping(0, 0, 0) as ending, held(f"/proc/{pid}", tmp_path / "mount"), quick():
        make_wait(pid)
        process = ProcessId(ending, 1)
        assert processes.is_alive(process), "nothing is known of it"
        os.kill(ending, signal.SIGKILL)
        os.waitpid(ending, 0)
        assert not processes.is_alive(process)


def test_others_of_its_user_are_read_soon_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can hold the directory of a program of root's: root's others would be unread for as long as the user liked."""
    with sleeping(USER, USER, USER) as pid, sleeping(USER, USER, USER) as neighbour:
        with held(f"/proc/{pid}", tmp_path / "mount"), quick():
            make_wait(pid)
            assert (processes.state(pid), processes.state(neighbour)) == ("?", "?")
            monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
            assert (processes.state(pid), processes.state(neighbour)) == ("?", "S")
            monkeypatch.setattr(process_reader, "_MOST_STUCK", 1)
            assert processes.state(neighbour) == "?"


def test_a_wait_counts_against_one_user_and_is_not_repeated_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was reaped meanwhile, or changed its user, charged root or many users, and kept the next reader too."""
    uids = [USER, OTHER]
    reader = ProcessReader(lambda pid: uids.pop(0) if uids[1:] else uids[0])
    with sleeping(USER, USER, USER) as pid, held(f"/proc/{pid}", tmp_path / "mount"), quick():
        with pytest.raises(Unanswered, match="its reader waits"):
            reader.text(pid, "uid_map")
        assert list(reader._waits) == [USER]
        with pytest.raises(Unanswered, match=f"pid {pid} is not read"):
            reader.text(pid, "uid_map")
        monkeypatch.setattr(process_reader, "_directory", lambda pid: 1)
        reader._check(pid)  # a later process with this pid, of the other user
    reader.close()


def test_a_held_directory_of_the_reader_delays_nothing(tmp_path: Path) -> None:
    """It has looked up what it needs of itself, and mpsd sees its state by a descriptor."""
    with sleeping(USER, USER, USER) as pid, sleeping(OTHER, OTHER, OTHER) as others:
        assert processes.state(others) == "S"
        with held(f"/proc/{processes.reader.pid}", tmp_path / "mount"), quick():
            assert processes.pid_namespaces(others)
            with held(f"/proc/{pid}", tmp_path / "second"):
                make_wait(pid)
                assert processes.state(others) == "S"


def test_a_user_is_read_again_once_the_directory_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping(USER, USER, USER) as pid:
        with held(f"/proc/{pid}", tmp_path / "mount"):
            make_wait(pid)
        monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
        until = time.monotonic() + 30
        while processes.state(pid) == "?" and time.monotonic() < until:  # until the killed reader has ended
            time.sleep(0.01)
        assert processes.state(pid) == "S"
