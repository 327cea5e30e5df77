"""mpsd's side of the keeper, against the real keeper."""

import errno
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from mpsd.errors import KeeperFailed
from mpsd.host.programs import native_directory
from mpsd.keeper import connections
from mpsd.keeper.connections import KeeperClient
from tests.descriptors import descriptors
from tests.inspecting import INSPECTOR

ROOT = Path(__file__).resolve().parents[3]
SLOW_KEEPER = Path(__file__).with_name("slow_keeper.py")
PROGRAM = native_directory() / "keeper" / "mpsd-keeper"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: make build")


@pytest.fixture
def client(short_dir):
    made = KeeperClient(INSPECTOR, PROGRAM, short_dir / "keeper", 64)
    made.open()
    yield made
    made.stop()


def another(client):
    return KeeperClient(INSPECTOR, PROGRAM, client._path, 64)


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
            assert (name, note, end.get_inheritable()) == ("client.1.control", 7, False)
            end.send(b"still open")
            assert theirs.recv(100) == b"still open"
        successor.stop()


def test_what_does_not_come_back_is_told(client):
    """A client whose connection stayed at the keeper waited for ever, and no log said so.  Closed, it would run without MPS."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        client.hold("client.1.control", ours)
        ours.close()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(os.devnull, "rb") as first_free:
            lowest = first_free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            with structlog.testing.capture_logs() as logs:
                assert client.held() == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert [(each["event"], each["name"]) for each in logs] == [("keeper.not_returned", "client.1.control")]
        theirs.send(b"still open")


@pytest.fixture
def listener(short_dir):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(short_dir / "control"))
        made.listen()
        made.setblocking(False)
        yield made


@pytest.fixture
def visitor(listener):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.connect(listener.getsockname())
        made.settimeout(10)
        yield made


def test_kill_9_at_the_first_moment_after_a_connection_was_accepted_does_not_close_it(client, listener, visitor):
    def look(*_):
        if not select.select([listener], [], [], 0)[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    if not (pid := os.fork()):
        sys.setprofile(look)  # called whenever Python calls something, or comes back
        client.accept(listener, "client.1.control", 7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    [(name, end, note)] = client.held()
    with end:
        assert (name, note) == ("client.1.control", 7)
        end.send(b"still open")
        assert visitor.recv(100) == b"still open"


def test_who_is_accepted_can_be_spoken_with_and_is_inherited_by_nobody(client, listener, visitor):
    with client.accept(listener, "client.1.control").sock as end:
        assert not end.get_inheritable()
        assert not os.get_blocking(end.fileno())
        end.send(b"hello")
        assert visitor.recv(100) == b"hello"


def test_where_nobody_waits_nobody_is_accepted(client, listener):
    with pytest.raises(BlockingIOError):
        client.accept(listener, "client.1.control")
    assert client.held() == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_without_a_keeper_connections_are_accepted_all_the_same(client, listener, visitor, how):
    if how == "closed":
        client.close()
    else:
        client._process.kill()
        assert client._process.has_ended(30)
    with client.accept(listener, "client.1.control").sock as end:
        end.send(b"hello")
        assert visitor.recv(100) == b"hello"
    client.open()  # so that a keeper runs


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
    assert client._process is None or client._process.has_ended(30)
    assert client.open() is False
    assert client._process.pid != pid


async def test_the_event_loop_goes_on_while_a_successor_is_sought(short_dir, monkeypatch):
    """A process that listens at its socket, and does not answer, has a few seconds."""
    monkeypatch.setattr("mpsd.keeper.connections._SECONDS", 0.5)
    client = KeeperClient(INSPECTOR, PROGRAM, short_dir / "keeper", 64)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(short_dir / "keeper"))
        silent.listen()
        is_there, turns = trio.Event(), 0

        async def replace():
            await client.replace()
            is_there.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace)
            while not is_there.is_set():
                await trio.sleep(0.02)
                turns += 1
    assert turns > 5
    assert client.is_there
    assert client.held() == []
    client.stop()


def test_a_keeper_that_does_not_keep_up_is_lost_without_a_wait(short_dir, monkeypatch):
    """The event loop gives it descriptors."""
    monkeypatch.setattr(connections, "_SECONDS", 3600.0)
    client = KeeperClient(INSPECTOR, PROGRAM, short_dir / "keeper", 64)
    client.open()
    os.kill(client.pid, signal.SIGSTOP)
    try:
        with structlog.testing.capture_logs() as logs:
            while not logs:
                client.drop("domain.1.default")
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.stop()
    assert [(entry["event"], entry["why"]) for entry in logs] == [("keeper.lost", os.strerror(errno.EAGAIN))]


async def test_the_successor_of_a_stopped_keeper_costs_no_descriptor(client, monkeypatch):
    monkeypatch.setattr(connections, "_SECONDS", 0.2)
    stopped = client.pid
    os.kill(stopped, signal.SIGSTOP)
    gc.collect()  # it would close what other tests have left
    before = descriptors()
    try:
        await client.replace()
        assert client.pid != stopped
        assert descriptors() == before
    finally:
        os.kill(stopped, signal.SIGKILL)
        await trio.to_thread.run_sync(os.waitpid, stopped, 0)


async def test_a_stopped_keeper_keeps_nothing_open_once_it_has_a_successor(client, monkeypatch):
    """It would hold the connections for as long as it lives, when it goes on: their peers would never see mpsd close them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        client.hold("domain.1.default", ours)
        [(_, copy, _)] = client.held()  # it has it
        copy.close()
        monkeypatch.setattr(connections, "_SECONDS", 0.2)
        stopped = client.pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            await client.replace()
            os.kill(stopped, signal.SIGCONT)
            ours.close()
            theirs.settimeout(10)
            assert await trio.to_thread.run_sync(theirs.recv, 100) == b""
        finally:
            os.kill(stopped, signal.SIGKILL)
            await trio.to_thread.run_sync(os.waitpid, stopped, 0)


async def test_stopping_it_ends_the_wait_for_its_death(client):
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_lost)
            await trio.testing.wait_all_tasks_blocked()
            client.stop()


def test_a_keeper_that_cannot_be_started_is_a_clear_error(short_dir):
    client = KeeperClient(INSPECTOR, short_dir / "absent", short_dir / "keeper", 64)
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


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(60)
def test_a_keeper_that_cannot_end_is_not_waited_for(short_dir):
    """mpsd waited on its event loop, with `quit` unanswered, as long as the file server of one silent client liked."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    (short_dir / "mounted").mkdir()
    words = [sys.executable, str(SLOW_KEEPER), *map(str, (short_dir / "mounted", PROGRAM, short_dir / "keeper"))]
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"root may not mount here: {done.stderr.strip()[-200:]}")
    assert "stopped\n" in done.stdout, done.stdout + done.stderr
