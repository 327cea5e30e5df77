"""The queue of connections that wait for a place: none is lost or begins twice, and one user does not fill it."""

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.backlog import Backlog, Note
from mpsd.relay.server import Relay
from tests.lingering import lingering

USER, OTHER = 1000, 1001


@pytest.fixture
def pairs() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def queue(pairs: ExitStack) -> Backlog:
    backlog = Backlog()
    for _, end, _ in backlog.ends():
        pairs.enter_context(end)
    return backlog


def connection(pairs: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return pairs.enter_context(ours), pairs.enter_context(theirs)


def put(backlog: Backlog, pairs: ExitStack, number: int, uid: int = USER, listed: list[int] | None = None) -> socket.socket:
    """Add a connection whose only descriptor here is its client's, which is returned."""

    @contextmanager
    def listing() -> Iterator[None]:
        if listed is not None:
            listed.append(number)
        yield
        if listed is not None:
            listed.remove(number)

    ours, theirs = connection(pairs)
    assert backlog.put(ours, Note(number, "control"), uid, listing())
    ours.close()
    return theirs


def numbers(backlog: Backlog, most: int = 64) -> list[int]:
    """Turn the queue, and return what was first each time."""
    found = []
    for sock, note in backlog.first(most):
        found.append(note.number)
        backlog.turn(sock, note)
    return found


def test_connections_stay_open_without_a_descriptor_and_come_out_in_order(pairs: ExitStack) -> None:
    backlog, listed = queue(pairs), list[int]()
    before = len(os.listdir("/proc/self/fd"))
    clients = [put(backlog, pairs, number, listed=listed) for number in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before + 3, "the clients' own"
    assert numbers(backlog) == numbers(backlog) == [0, 1, 2]
    assert listed == [0, 1, 2]
    taken = []
    for sock, note in backlog.first(64):
        backlog.take(note)
        taken.append(note.number)
        with sock:
            sock.send(b"hello %d" % note.number)
    assert [client.recv(16) for client in clients] == [b"hello 0", b"hello 1", b"hello 2"]
    assert (taken, listed, backlog.of_all, numbers(backlog)) == ([0, 1, 2], [], 0, [])


def test_a_restarted_mpsd_finds_each_once(pairs: ExitStack) -> None:
    """The earlier one died when it had put a connection at the end, and had not removed it from the front."""
    before = queue(pairs)
    client = put(before, pairs, 7)
    put(before, pairs, 8)
    [(sock, note), *_] = before.first(1)
    with sock:
        assert before._send(sock, b"\x93\x07\xa7control\x90")
    held = [(name, pairs.enter_context(end.dup()), 0) for name, end, _ in before.ends()]
    for _, end, _ in before.ends():
        end.close()

    backlog, resumed = queue(pairs), []
    for sock, note in backlog.resume(held):
        resumed.append(note.number)
        assert backlog.put(sock, note, USER, nullcontext())
    assert resumed == [7, 8]
    while backlog.of_all:
        for sock, note in backlog.first(64):
            with sock:
                backlog.take(note)
    assert client.recv(1) == b"", "no copy is left"


@contextmanager
def descriptors_all_in_use() -> Iterator[None]:
    """mpsd may open no descriptor, but for the spare ones."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_restarted_mpsd_without_free_descriptors_finds_each_too(pairs: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stopped at the first, and then dropped the others as second copies: those clients ran without MPS."""
    before = queue(pairs)
    clients = [put(before, pairs, number) for number in range(3)]
    held = [(name, pairs.enter_context(end.dup()), 0) for name, end, _ in before.ends()]
    backlog, resumed = queue(pairs), []
    for end in backlog._ends:
        end.close()  # as it does itself: these numbers are free then
    with descriptors_all_in_use():
        for sock, note in backlog.resume(held):
            resumed.append(note.number)
            assert backlog.put(sock, note, USER, nullcontext())
    with descriptors_all_in_use():
        assert list(backlog.first(64)) == []
    assert resumed == numbers(backlog) == [0, 1, 2]
    for client in clients:
        with pytest.raises(BlockingIOError):
            client.recv(1, socket.MSG_DONTWAIT)
    monkeypatch.setattr("mpsd.relay.backlog.spare_descriptors", nullcontext)
    with descriptors_all_in_use(), pytest.raises(OSError, match="Too many open files"):
        list(queue(pairs).resume([(name, end, 0) for name, end, _ in backlog.ends()]))


async def test_a_restarted_mpsd_keeps_all_of_a_full_queue(pairs: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It judged their shares again, in the order of the turned queue, and dropped a thousand: those clients ran without MPS."""
    shared = SimpleNamespace(progress=SimpleNamespace(resume=lambda slots: {}))
    before, relay = queue(pairs), Relay(shared, backlog=queue(pairs))  # type: ignore[arg-type]
    ours, _ = connection(pairs)
    owners: list[int] = []
    for user in (USER, OTHER):
        while before.put(ours, Note(len(owners), "control"), user, nullcontext()):
            owners.append(user)
    numbers(before, owners.count(USER) // 2)
    held = [(name, pairs.enter_context(end.dup()), 0) for name, end, _ in before.ends()]
    uid_of = iter([*owners[owners.count(USER) // 2 :], *owners[: owners.count(USER) // 2]])
    monkeypatch.setattr("mpsd.relay.server.peer_credentials", lambda sock: Credentials(1, next(uid_of), 0))
    monkeypatch.setattr("mpsd.relay.server._identify", lambda sock, who: (None, "", False))
    monkeypatch.setattr(Relay, "_listed", lambda relay, process, uid: nullcontext())
    with trio.CancelScope() as scope:
        scope.cancel()
        async with trio.open_nursery() as nursery:
            relay.resume(held, nursery)
    assert (relay.backlog.of(USER), relay.backlog.of(OTHER)) == (owners.count(USER), owners.count(OTHER))


async def test_a_restarted_mpsd_waits_for_nothing_that_one_which_hung_up_has_left(pairs: ExitStack) -> None:
    """It closed the last copy on its event loop: a user whose connection waits could stop mpsd at its next start."""
    shared = SimpleNamespace(progress=SimpleNamespace(resume=lambda slots: {}))
    before, relay = queue(pairs), Relay(shared, backlog=queue(pairs))  # type: ignore[arg-type]
    reader, writer = os.pipe()
    with lingering() as fd:
        client = put(before, pairs, 1)
        for descriptor in (fd, writer):
            socket.send_fds(client, [b"left behind"], [descriptor])
            os.close(descriptor)
        client.close()
        held = [(name, pairs.enter_context(end.dup()), 0) for name, end, _ in before.ends()]
        began = time.monotonic()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with trio.open_nursery() as nursery:
                relay.resume(held, nursery)
        assert time.monotonic() - began < 5, "it lingers for ten seconds"
        assert len(relay.backlog) == 0
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(reader)  # all was closed
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("greeting", [[], [b"greeting"]])
def test_one_user_leaves_room_for_others(greeting: list[bytes], pairs: ExitStack) -> None:
    """Also one whose clients are silent: it filled the queue with them, and mpsd closed the connections of others."""
    backlog = queue(pairs)
    ours, _ = connection(pairs)
    count = 0
    while backlog.put(ours, Note(count, "control", greeting), USER, nullcontext()):
        count += 1
        assert count < 100_000
    assert count >= 300
    others = 0
    while others < count // 10:
        assert backlog.put(ours, Note(count + others, "control"), OTHER, nullcontext())
        others += 1
    assert backlog.of(USER) == (0 if greeting else count)
    assert backlog.of(OTHER) == others
    assert len(numbers(backlog, count + others)) == count + others, "it can be turned though it is full"


def test_who_waits_for_its_client_has_no_claim_to_a_place(pairs: ExitStack) -> None:
    backlog = queue(pairs)
    ours, _ = connection(pairs)
    assert backlog.put(ours, Note(1, "control", [b"greeting"]), USER, nullcontext())
    assert (backlog.of(USER), backlog.of_all) == (0, 0)
    [(sock, note)] = backlog.first(64)
    sock.close()
    assert note.greeting == [b"greeting"]


@pytest.mark.parametrize("uid", [0, USER])
def test_no_user_takes_all_places(pairs: ExitStack, uid: int) -> None:
    """Root did, and may be that of a container: with connections that stayed in their handshake it kept all others out."""
    pool = SimpleNamespace(is_stopping=False, home_of=lambda process: None)
    shared = SimpleNamespace(settings=SimpleNamespace(max_connections=64), pool=pool, open=Counter())
    relay = Relay(shared, backlog=queue(pairs))  # type: ignore[arg-type]

    def takes_a_place(uid: int) -> bool:
        places = relay._places_for(Credentials(1, uid, uid), lambda: None, is_first=True)
        if places is not None:
            places[uid] += 1
        return places is not None

    taken = sum(takes_a_place(uid) for _ in range(64))
    assert 32 < taken < 56
    assert takes_a_place(OTHER)


@pytest.mark.root  # without CAP_NET_ADMIN some 350 can wait
async def test_a_full_queue_of_one_user_delays_no_other_for_long(
    pairs: ExitStack, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """With 64 looked at each 0.1 s, the last of 5,000 was looked at after 8 s, though there was a place for it."""
    waiting, last = 5000, ProcessId(5000, 1)
    settings = SimpleNamespace(max_connections=64, silent_seconds=30.0)
    relay = Relay(SimpleNamespace(settings=settings), backlog=queue(pairs))  # type: ignore[arg-type]
    ours, theirs = connection(pairs)
    with theirs:
        for number in range(1, waiting):
            assert relay.backlog.put(ours, Note(number, "control"), USER, nullcontext(), ProcessId(number, 1))
        assert relay.backlog.put(ours, Note(waiting, "control"), OTHER, nullcontext(), last)
        begun: list[float] = []

        def begin(relay: Relay, sock: socket.socket, note: Note, nursery: trio.Nursery, places: object) -> None:
            relay.backlog.take(note)
            sock.close()
            begun.append(trio.current_time())
            nursery.cancel_scope.cancel()

        monkeypatch.setattr(Relay, "_places_for", lambda relay, who, find, is_first: find() == last or None)
        monkeypatch.setattr(Relay, "_begin_late", begin)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay._serve_backlog, nursery)
        assert begun[0] - start < 2.0
