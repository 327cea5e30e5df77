"""mpsd's side of the keeper, against the real keeper."""

import os
import signal
import socket

import pytest
import trio
import trio.testing

from mpsd.errors import KeeperFailed
from mpsd.places import native_directory
from mpsd.runtime.keeper import KeeperClient

PROGRAM = native_directory() / "keeper" / "mpsd-keeper"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: make build")


@pytest.fixture
def client(short_dir):
    made = KeeperClient(PROGRAM, short_dir / "keeper", 64)
    made.open()
    yield made
    made.stop()


def another(client):
    return KeeperClient(PROGRAM, client._path, 64)


def test_what_one_mpsd_gave_the_next_gets_back(client):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        client.hold("client.1.control", ours, note=7)
        ours.close()
        client.close()  # kill -9
        successor = another(client)
        assert successor.open() is True
        [(name, end, note)] = successor.held()
        with end:
            assert (name, note) == ("client.1.control", 7)
            end.send(b"still open")
            assert theirs.recv(100) == b"still open"
        successor.stop()


def test_what_was_dropped_is_closed(client):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        client.hold("client.1.control", ours)
        client.drop("client.1.control")
        assert client.held() == []
        ours.close()
        assert theirs.recv(1) == b""


def test_a_higher_generation_changes_the_note(client):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        client.hold("client.1.control", ours, note=0)
        client.hold("client.1.control", ours, note=1, generation=2)
        [(_, end, note)] = client.held()
        end.close()
        assert note == 1


def test_more_than_a_page_comes_back(client):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        names = {f"client.{number}.control" for number in range(64)}
        for name in names:
            client.hold(name, ours)
        held = client.held()
        assert {name for name, _, _ in held} == names
        for _, end, _ in held:
            end.close()


async def test_its_death_is_noticed_and_another_one_started(client):
    pid = client._process.pid
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_lost)
            os.kill(pid, signal.SIGKILL)
    client._process.wait()
    assert client.open() is False
    assert client._process.pid != pid


async def test_stopping_it_ends_the_wait_for_its_death(client):
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_lost)
            await trio.testing.wait_all_tasks_blocked()
            client.stop()


def test_a_keeper_that_cannot_be_started_is_a_clear_error(short_dir):
    client = KeeperClient(short_dir / "absent", short_dir / "keeper", 64)
    with pytest.raises(KeeperFailed, match="absent cannot be started"):
        client.open()


def test_a_refusal_of_its_is_only_logged(client):
    """A full keeper must not stop mpsd from serving."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for number in range(80):
            client.hold(f"client.{number}.control", ours)
        held = client.held()
        assert len(held) == 64
        for _, end, _ in held:
            end.close()
