"""Command sessions over a real socket."""

import errno
import os
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.commands import sessions as module
from mpsd.commands.language.call import Answer
from mpsd.commands.sessions import GREETING, Sessions, SessionSettings
from mpsd.host import descriptors, peers, processes
from mpsd.host.descriptors import MOST_CLOSINGS
from mpsd.host.peers import Recognition
from mpsd.host.polling import is_readable
from mpsd.host.process_reader import Unanswered
from mpsd.model.authority import Caller
from mpsd.model.process import ProcessId
from tests.container_flood import flood_of_a_container
from tests.lingering import lingering
from tests.listening import listening
from tests.rounds import Rounds
from tests.running import running
from tests.speaking import send_from_a_child
from tests.unit.commands.language.fake_board import FakeBoard


async def test_unread_descriptors_keep_no_place_of_a_session(short_dir: Path) -> None:
    """A session counted until they were closed, for as long as their sender liked: a user could so take all places."""
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=1, idle_seconds=60))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, lingering() as fd:
        listener.bind(str(short_dir / "door"))
        listener.listen()
        listener.setblocking(False)
        with _front_end(listener) as other:
            other.send(b"another version")
            socket.send_fds(other, [b"unread"], [fd])
            os.close(fd)
            async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
                with trio.fail_after(5):  # the descriptor lingers for ten seconds
                    await trio.lowlevel.wait_readable(other)
                    with _front_end(listener) as ours:
                        ours.send(GREETING)
                        await trio.lowlevel.wait_readable(ours)
                        assert ours.recv(4096) == GREETING
                    await sessions.settled()


async def test_an_operator_that_cannot_be_read_learns_why_it_is_refused(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was answered as a user without rights."""

    def unread(*_: object, **__: object) -> None:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    monkeypatch.setattr(module, "caller_of", unread)
    monkeypatch.setattr(peers, "_UNKNOWN_SECONDS", 0.0)
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=64, idle_seconds=60))
    with listening(short_dir) as listener, _front_end(listener) as ours:
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(ours)
            await sessions.settled()
        why = b"mpsd cannot tell whether an operator asks: processes of uid 0 are not read for 5 s\n"
        assert [ours.recv(4096) for _ in range(3)] == [b"E" + why, b"X\1", b""]


async def test_an_operator_that_cannot_be_read_later_learns_why(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.5, where its message has to show who it is: it was answered as a user without rights."""

    def unread(pid: int, **_: object) -> None:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    def recognize(connection: socket.socket, process: ProcessId | None) -> Recognition:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        monkeypatch.setattr(processes, "process_id", unread)
        return Recognition(connection, process, is_certain=False, comes_later=True)

    monkeypatch.setattr(module, "recognize", recognize)
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=64, idle_seconds=60))
    with listening(short_dir) as listener, _front_end(listener) as ours:
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            await trio.testing.wait_all_tasks_blocked()
            ours.send(GREETING)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(ours)
            await sessions.settled()
        why = b"mpsd cannot tell whether an operator asks: processes of uid 0 are not read for 5 s\n"
        assert [ours.recv(4096) for _ in range(3)] == [b"E" + why, b"X\1", b""]


async def test_root_of_a_container_does_not_keep_operators_waiting(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slow descriptors counted as those of root of the host, from whom mpsd took no command until they were closed."""
    may_close, close_all, is_inside = threading.Event(), descriptors.close_all, [False] * MOST_CLOSINGS + [True]

    def close(fds: Collection[int]) -> None:
        may_close.wait(60)
        close_all(fds)

    monkeypatch.setattr(descriptors, "close_all", close)
    monkeypatch.setattr(module, "caller_of", lambda *_, **__: (None, Caller(0, 0, False, is_inside.pop(0))))
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=64, idle_seconds=60))
    with listening(short_dir) as listener, ExitStack() as opened:
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            for _ in range(MOST_CLOSINGS):
                socket.send_fds(opened.enter_context(_front_end(listener)), [GREETING], [0])
            await trio.testing.wait_all_tasks_blocked(0.05)
            ours = opened.enter_context(_front_end(listener))
            ours.send(GREETING)
            try:
                with trio.fail_after(10):
                    await trio.lowlevel.wait_readable(ours)
            finally:
                may_close.set()
            assert ours.recv(4096) == GREETING
            nursery.cancel_scope.cancel()


@pytest.mark.root
@pytest.mark.parametrize("uids", [[0] * 5, range(20_000, 20_005)], ids=["as root", "as many users"])
async def test_root_of_a_container_evicts_no_session_of_root(short_dir: Path, uids: Iterable[int]) -> None:
    """The session evicted was the one idle longest of the uid with most: root of the host has the same uid, or two sessions."""
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=4, idle_seconds=60))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, capture_logs() as logged, ExitStack() as opened:
        listener.bind(str(short_dir / "door"))
        (short_dir / "door").chmod(0o666)
        listener.listen()
        listener.setblocking(False)
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            with trio.fail_after(10):
                ours = [opened.enter_context(_front_end(listener)) for _ in range(2)]
                for each in ours:
                    each.send(GREETING)
                    await trio.lowlevel.wait_readable(each)
                    assert each.recv(4096) == GREETING
                with flood_of_a_container(short_dir / "door", uids):
                    while sum(each["event"] in ("ui.evicted", "ui.dropped") for each in logged) < 3:  # noqa: ASYNC110
                        await trio.sleep(0.005)
                    assert not any(map(is_readable, ours))
            nursery.cancel_scope.cancel()


@pytest.mark.root
async def test_slow_commands_of_many_users_keep_no_operator_waiting(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that wait for an answer make no room: as many users root of a container could have all of them."""
    running_now: list[int] = []

    async def slow(board: object, caller: Caller, line: bytes) -> Answer:
        running_now.append(caller.uid)
        if caller.uid:
            await trio.sleep_forever()
        return Answer("done\n")

    monkeypatch.setattr(module, "dispatch", slow)
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=8, idle_seconds=60))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, capture_logs() as logged, ExitStack() as opened:
        listener.bind(str(short_dir / "door"))
        (short_dir / "door").chmod(0o666)
        listener.listen()
        listener.setblocking(False)
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            with trio.fail_after(20):
                for uid in range(20_000, 20_009):
                    theirs = opened.enter_context(_front_end(listener, uid))
                    theirs.send(GREETING)
                    theirs.send(b"start_server -uid 1")
                    while len(running_now) < min(uid - 19_999, 7):  # noqa: ASYNC110
                        await trio.sleep(0.005)
            with trio.fail_after(10):
                ours = opened.enter_context(_front_end(listener))
                ours.send(GREETING)
                ours.send(b"get_server_list")
                for expected in (GREETING, b"Odone\n", b"X\0"):
                    await trio.lowlevel.wait_readable(ours)
                    assert ours.recv(4096) == expected
                last = opened.enter_context(_front_end(listener, 20_009))
                last.send(GREETING)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not is_readable(ours)  # its place is no other user's
            nursery.cancel_scope.cancel()
    assert len(running_now) == 8
    assert not [each for each in logged if each["event"] == "ui.evicted"]


@pytest.mark.parametrize("knows_pidfds", [True, False])
async def test_on_an_older_kernel_an_operator_has_to_speak_itself(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, knows_pidfds: bool
) -> None:
    """Linux before 6.5: a container's process had left commands and ended; once one of root's had its pid, they were root's."""
    were_owners: list[bool] = []

    async def note(board: object, caller: Caller, line: bytes) -> Answer:
        were_owners.append(caller.is_owner)
        return Answer()

    async def answered() -> None:
        while (await hear()) != b"X\0":
            pass

    async def hear() -> bytes:
        await trio.lowlevel.wait_readable(ours)
        return ours.recv(4096)

    monkeypatch.setattr(module, "dispatch", note)
    if not knows_pidfds:
        monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=64, idle_seconds=60))
    with listening(short_dir) as listener, _front_end(listener) as ours:
        ours.send(GREETING)
        ours.send(b"quit before mpsd looked")
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            with trio.fail_after(10):
                await answered()
                send_from_a_child(ours, b"quit by another process")
                await answered()
                ours.send(b"quit by the process that connected")
                await answered()
                send_from_a_child(ours, b"quit, which it may delegate")
                await answered()
            nursery.cancel_scope.cancel()
    assert were_owners == ([True] * 4 if knows_pidfds else [False, False, True, True])


async def test_commands_that_are_too_long_are_no_more_turns(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines for the log were escaped all at once: with 200 sessions of one user, a client's start took 17 s."""
    rounds, escaped = Rounds(), Counter[int]()

    def note(raw: bytes) -> str:
        escaped[rounds.number] += 1
        return ""

    monkeypatch.setattr(module, "caller_of", lambda *_, **__: (None, Caller(1000, 0)))
    monkeypatch.setattr(module, "printable", note)
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=64, idle_seconds=60))
    with listening(short_dir) as listener, ExitStack() as opened:
        async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
            front_ends = []
            for _ in range(20):
                front_ends.append(opened.enter_context(_front_end(listener)))
                front_ends[-1].send(GREETING)
                await trio.lowlevel.wait_readable(front_ends[-1])
                assert front_ends[-1].recv(4096) == GREETING
            trio.lowlevel.add_instrument(rounds)
            for each in front_ends:
                each.send(b"x" * (module.MAX_COMMAND_BYTES + 1))
            for each in front_ends:
                with trio.fail_after(10):
                    await trio.lowlevel.wait_readable(each)
            trio.lowlevel.remove_instrument(rounds)
            nursery.cancel_scope.cancel()
    assert escaped.total() == len(front_ends)
    assert max(escaped.values()) <= module._RUNNING_OF_USER


def _front_end(listener: socket.socket, uid: int | None = None) -> socket.socket:
    """Connect, as this user if one is given."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours = os.geteuid()
    os.seteuid(ours if uid is None else uid)
    try:
        made.connect(listener.getsockname())
    finally:
        os.seteuid(ours)
    return made
