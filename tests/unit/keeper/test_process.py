"""Keepers whose sockets were removed are found, and no line that another user forged names one."""

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.errors import KeeperFailed
from mpsd.host import processes
from mpsd.host.child import Child
from mpsd.host.programs import native_directory
from mpsd.keeper.connections import KeeperClient
from mpsd.keeper.process import connect_keeper, find_unreachable, start_keeper
from tests.inspecting import INSPECTOR

NAME = "mpsd-keeper"
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A short path: AF_UNIX takes 107 bytes."""
    directory = Path(f"/dev/shm/mpsd-k{os.getpid()}")
    directory.mkdir()
    yield directory / "keeper"
    shutil.rmtree(directory)


@pytest.fixture
def keeper(place: Path) -> Iterator[Child]:
    made = start_keeper(INSPECTOR, native_directory() / "keeper" / NAME, place, 4)
    yield made
    made.kill()
    made.reap()


def unreachable(place: Path) -> dict[str, int]:
    return {name: found.pid for name, found in find_unreachable(Path(NAME), place).items()}


def test_a_keeper_is_found_when_its_socket_was_removed(place: Path, keeper: Child) -> None:
    assert unreachable(place) == {}
    place.unlink()
    assert unreachable(place) == {"keeper": keeper.pid}


@pytest.fixture
def listener(place: Path) -> Iterator[socket.socket]:
    """A listening socket whose name no path leads to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(f"{place}-9")
        made.listen()
        os.unlink(f"{place}-9")
        yield made


@pytest.mark.root
def test_a_socket_of_another_user_names_no_keeper(place: Path, listener: socket.socket) -> None:
    """Whose inode number is that of the keeper's own, as after 2^32 others: mpsd killed the keeper."""
    command = [str(native_directory() / "keeper" / NAME), "--fd", "3", "--max", "4"]
    with open(os.devnull, "r+b", buffering=0) as null:
        keeper = INSPECTOR.start_program(command, {}, [null.fileno()] * 3 + [listener.fileno()])
    try:
        assert unreachable(place) == {"keeper-9": keeper.pid}
        os.fchown(listener.fileno(), NOBODY, NOBODY)
        assert unreachable(place) == {}
    finally:
        keeper.kill()
        keeper.reap()


def test_a_keeper_is_not_searched_for_each_socket(
    place: Path, keeper: Child, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search looks at all of its descriptors: with 100,000 sockets mpsd did not start in its time."""
    searches: list[int] = []
    monkeypatch.setattr(processes, "numbers", lambda pid, links: set(searches.append(pid) or ()))
    assert unreachable(place) == {}
    assert not searches


def test_a_name_alone_has_no_status_read(place: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process can take the keeper's name, and the status of one with 65,536 groups takes 20 ms."""
    read, sole_uid = list[int](), processes.sole_uid
    monkeypatch.setattr(processes, "sole_uid", lambda pid: read.append(pid) or sole_uid(pid))
    command = [sys.executable, "-S", "-c", f"open('/proc/self/comm', 'w').write('{NAME}'); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout
        assert named.stdout.readline() == b"\n"
        assert processes.command(named.pid) == NAME
        assert unreachable(place) == {}
        assert not read
        named.kill()


def test_without_a_free_descriptor_a_keeper_is_neither_reached_nor_replaced(place: Path, keeper: Child) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(KeeperFailed, match="Too many open files"):
            connect_keeper(place, 1.0)
        with pytest.raises(KeeperFailed, match="Too many open files"):
            start_keeper(INSPECTOR, Path(NAME), place, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = connect_keeper(place, 1.0)
    assert found is not None
    found.close()


def test_a_forged_line_does_not_make_a_keeper_unreachable(place: Path, keeper: Child) -> None:
    """The name of a socket may contain a newline, and what follows looks like a line of the kernel's."""
    inode = socket_of(keeper.pid, place)
    with socket.socket(socket.AF_UNIX) as forger:
        forger.bind(f"\0x\n0: 00000002 00000000 00010000 0001 01 {inode} {place}9".encode())
        assert f" {inode} {place}9" in Path("/proc/net/unix").read_text()
        assert unreachable(place) == {}
        place.unlink()
        assert unreachable(place) == {"keeper": keeper.pid}, "nor hides it a keeper that is"


ELSEWHERE = """
import socket
made, other = socket.socketpair()
socket.send_fds(socket.socket(fileno=0), [b"1"], [made.fileno()])
"""


@pytest.mark.root
def test_a_forged_line_for_a_connection_that_a_keeper_holds_names_no_keeper(place: Path, keeper: Child) -> None:
    """The true line of a connection from another network namespace is not in mpsd's list: it is there once, forged."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run(["unshare", "-n", sys.executable, "-c", ELSEWHERE], stdin=theirs, check=True)
        _, [held], _, _ = socket.recv_fds(ours, 1, 1)
    client = KeeperClient(INSPECTOR, native_directory() / "keeper" / NAME, place, 4)
    assert client.open()
    with socket.socket(fileno=held) as connection:
        client.hold("client.1.control", connection)
        assert [name for name, end, _ in client.held() if not end.close()] == ["client.1.control"]
        inode = os.fstat(held).st_ino
    client.close()
    with socket.socket(socket.AF_UNIX) as forger:
        forger.bind(f"\0x\n0: 00000002 00000000 00010000 0001 01 {inode} {place}9".encode())
        assert Path("/proc/net/unix").read_text().count(f" {inode}") == 1
        assert processes.numbers(keeper.pid, [f"socket:[{inode}]"])
        assert unreachable(place) == {}


def socket_of(pid: int, place: Path) -> str:
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {place}")]
    [inode] = [words[6] for words in lines if processes.numbers(pid, [f"socket:[{words[6]}]"])]
    return inode
