"""Arrivals at a socket: closed connections cost little, and users take turns."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from mpsd.fairness.uid_ranges import of_ranges
from mpsd.host import arrivals
from mpsd.host.arrivals import Arrival, accept, accept_for, accepted, hang_up, is_empty, serve_in_turn
from mpsd.model.process import Credentials
from tests.lingering import lingering
from tests.listening import listening
from tests.rounds import Rounds
from tests.running import running


@pytest.fixture
def listener(short_dir: Path) -> Iterator[socket.socket]:
    with listening(short_dir) as made:
        yield made


def visitor(listener: socket.socket) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(listener.getsockname())
    return made


def test_who_connects_is_known(listener: socket.socket) -> None:
    with visitor(listener), found(accept(listener)).sock as sock:
        assert not sock.getblocking()
        assert not sock.get_inheritable()
    with visitor(listener):
        arrival = found(accept(listener))
        arrival.sock.close()
    assert arrival.credentials == Credentials(os.getpid(), os.getuid(), os.getgid())
    with pytest.raises(BlockingIOError):
        accept(listener)


def found(arrival: Arrival | None) -> Arrival:
    assert arrival is not None
    return arrival


def test_who_has_hung_up_is_passed_over(listener: socket.socket) -> None:
    """Also with unread data, or without having sent any."""
    for words in ([], [b"junk"], [b"", b"more"]):
        with visitor(listener) as gone:
            for word in words:
                gone.send(word)
    with visitor(listener):
        arrival = found(accept(listener))
        arrival.sock.close()
        assert not arrival.is_gone


def test_descriptors_that_were_left_behind_are_closed_apart(listener: socket.socket) -> None:
    reader, writer = os.pipe()
    with visitor(listener) as gone:
        socket.send_fds(gone, [b""], [writer])
    os.close(writer)
    left = found(accept(listener))
    left.sock.close()
    assert left.is_gone
    with visitor(listener) as gone:
        socket.send_fds(gone, [b""], [os.dup(reader)])
    assert list(accepted(lambda: accept(listener), 10)) == []
    assert os.read(reader, 1) == b"", "the thread has closed it"
    os.close(reader)


async def test_a_lingering_descriptor_keeps_no_thread_of_mpsds() -> None:
    """Each kept one, and its connection, for as long as its sender had chosen; the sender needed nothing open for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    with lingering() as fd:
        socket.send_fds(theirs, [b"first"], [fd])
        os.close(fd)
        socket.send_fds(theirs, [b"then"], [writer])
        os.close(writer)
        theirs.close()
        hang_up(ours)
        with trio.fail_after(5):  # it lingers for ten seconds
            await trio.lowlevel.wait_readable(reader)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_without_a_thread_a_connection_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was drained at once, on the event loop, which then waited for as long as its sender had chosen."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    reader, writer = os.pipe()
    for (ours, theirs), can_start in zip(ends, (False, True), strict=True):
        socket.send_fds(theirs, [b"word"], [writer])
        with monkeypatch.context() as patch:
            if not can_start:
                patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
            hang_up(ours)
        assert can_start or ours.fileno() >= 0
    os.close(writer)
    assert os.read(reader, 1) == b"", "both are closed"
    for _, theirs in ends:
        theirs.close()
    os.close(reader)


def test_descriptors_behind_an_empty_message_are_closed_apart_too(listener: socket.socket) -> None:
    """An empty message looked like the end: the rest was closed on the event loop, for as long as its sender liked."""
    reader, writer = os.pipe()
    with visitor(listener) as gone:
        gone.send(b"")
        socket.send_fds(gone, [b"x"], [writer])
    os.close(writer)
    left = found(accept(listener))
    assert left.is_gone
    assert not is_empty(left.sock)
    left.sock.close()
    with visitor(listener) as gone:
        gone.send(b"")
        socket.send_fds(gone, [b"x"], [os.dup(reader)])
    assert list(accepted(lambda: accept(listener), 10)) == []
    assert os.read(reader, 1) == b"", "the thread has closed it"
    os.close(reader)


def test_an_empty_message_is_no_end() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near:
        far.send(b"")
        assert not is_empty(near)
        far.send(b"words")
        far.close()
        assert not is_empty(near)
        assert near.recv(100) == b""
        assert near.recv(100) == b"words"
        assert is_empty(near)


def test_the_senders_of_first_words_are_told_where_it_is_for_a_keeper(listener: socket.socket) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, visitor(listener) as came:
        arrival, lost = accept_for(listener, ours.fileno(), b"request")
        assert lost == 0
        request, [copy], _, _ = socket.recv_fds(theirs, 100, 1)
        assert request == b"request"
        os.close(copy)
        came.send(b"words")
        with found(arrival).sock as sock:
            _, ancillary, _, _ = sock.recvmsg(100, socket.CMSG_SPACE(12))
        assert ancillary[0][1] == socket.SCM_CREDENTIALS


def test_what_is_queued_is_seen_and_stays() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        assert is_empty(near)
        far.send(b"words")
        assert not is_empty(near)
        far.close()
        assert not is_empty(near)
        assert near.recv(100) == b"words"
        assert is_empty(near)


def test_a_connection_with_words_in_it_is_closed_too() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far.settimeout(10)
    with far:
        far.send(b"words")
        hang_up(near)
        assert far.recv(1) == b""


SUBORDINATE = of_ranges([(900, 1000)])


@pytest.mark.parametrize(
    ("uids", "most", "begun", "refused"),
    [
        pytest.param([7] * 6 + [8], 256, [7, 8, 7, 7, 7], [7, 7], id="no user has more waiting than may"),
        pytest.param([*range(900, 906), 8], 256, [902, 8, 903, 904, 905], [900, 901], id="subordinate uids"),
        pytest.param([7, 7, 7, 8, 9], 3, [7, 8, 9], [7, 7], id="too many in all: of the user with most"),
    ],
)
async def test_users_are_begun_in_turn(
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    uids: list[int],
    most: int,
    begun: list[int],
    refused: list[int],
) -> None:
    came = iter(uids)

    def as_user(door: socket.socket) -> Arrival | None:
        arrival = accept(door)
        return arrival and Arrival(arrival.sock, replace(arrival.credentials, uid=next(came)))

    monkeypatch.setattr(arrivals, "accept", as_user)
    monkeypatch.setattr(arrivals, "MOST_WAITING", most)
    monkeypatch.setattr(arrivals, "_TURN_SECONDS", 10.0)  # all of them in one turn, however busy the machine is
    were_begun: list[int] = []
    were_refused: list[int] = []

    def take(into: list[int], arrival: Arrival) -> None:
        into.append(arrival.credentials.uid)
        hang_up(arrival.sock)

    begin, refuse = partial(take, were_begun), partial(take, were_refused)
    with ExitStack() as stack:
        for _ in uids:
            stack.enter_context(visitor(listener))
        async with running(serve_in_turn, listener, begin, refuse, SUBORDINATE.share_of, lambda _: False, 4, print):
            with trio.fail_after(10):
                while len(were_begun) + len(were_refused) < len(uids):  # noqa: ASYNC110
                    await trio.sleep(0.001)
    assert (were_begun, were_refused) == (begun, refused)


async def test_slow_arrivals_begin_in_turns_of_their_own(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight users with 65,536 groups blocked the event loop for 120 ms, and would again in each turn."""
    came, rounds, begun = iter(range(7, 15)), Rounds(), Counter[int]()

    def as_user(door: socket.socket) -> Arrival | None:
        arrival = accept(door)
        return arrival and Arrival(arrival.sock, replace(arrival.credentials, uid=next(came)))

    def begin(arrival: Arrival) -> None:
        begun[rounds.number] += 1
        hang_up(arrival.sock)

    monkeypatch.setattr(arrivals, "accept", as_user)
    monkeypatch.setattr(arrivals, "_TURN_SECONDS", 10.0)
    monkeypatch.setattr(arrivals, "_BEGIN_SECONDS", -1.0)  # each takes longer
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(visitor(listener))
        trio.lowlevel.add_instrument(rounds)
        async with running(serve_in_turn, listener, begin, print, int, lambda _: False, 4, print):
            with trio.fail_after(10):
                while begun.total() < 8:  # noqa: ASYNC110
                    await trio.sleep(0.001)
        trio.lowlevel.remove_instrument(rounds)
    assert set(begun.values()) == {1}
