"""Connections that mpsd ends, and when: silent, closed, not reading, too many; and each user gets only its share of turns."""

import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mpsd.api import connection, server
from mpsd.api.authority import Peer, peer_of
from mpsd.api.datagrams import parse as parse_request
from mpsd.api.dispatch import dispatch
from mpsd.fairness.uid_ranges import parse
from mpsd.host import arrivals, peers, processes
from mpsd.host.datagrams import Datagram
from mpsd.host.descriptors import MOST_HELD
from mpsd.host.peers import Recognition
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import ProcessId
from mpsd.wire.messages import VERSION
from mpsd.wire.rpc import Notification, Request, Response, encode
from tests.container_flood import flood_of_a_container
from tests.rounds import Rounds
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, Caller, open_daemon


async def test_who_does_not_say_hello_is_let_go(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, hello_seconds=0.05) as daemon:
        assert "hello" in (await daemon.connect().goodbye())["message"]
        await daemon.until(0)


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "never"])
async def test_an_unread_peer_waits_some_seconds(short_dir: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """One late read of /proc keeps all of a user's processes unread for 5 s: Slurm's scripts got an error at once."""
    looks = 0

    def looked(sock: socket.socket, *_: object, **__: object) -> Peer:
        nonlocal looks
        looks += 1
        if looks < 4 or not is_late:
            raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")
        return peer_of(sock, None)

    monkeypatch.setattr(server, "peer_of", looked)
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(peers, "_UNKNOWN_SECONDS", 60.0 if is_late else 0.1)
    async with open_daemon(short_dir, max_per_user=1) as daemon:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
            ours.connect(str(daemon.listen(short_dir)))
            ours.setblocking(False)
            caller = Caller(ours)
            await daemon.until(1)
            if is_late:
                assert (await caller.ask("hello", version=VERSION))["is_operator"]
            else:
                said = await caller.goodbye()
                assert said["name"] == "TOO_MANY"
                assert said["message"].startswith("mpsd cannot tell who asks: ")
        await daemon.until(0)
    assert looks > 3


async def test_an_unread_operator_waits_however_many_root_of_a_container_has(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused at once, as one connection too many of its uid."""
    read, unread = processes.process_id, True

    def look(pid: int, **how: bool) -> ProcessId | None:
        if unread:
            raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")
        return read(pid, **how)

    monkeypatch.setattr(processes, "process_id", look)
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.01)
    async with open_daemon(short_dir, max_per_user=2) as daemon:
        for _ in range(2):
            await daemon.call_as(Peer(999, os.getuid(), is_operator=False))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
            ours.connect(str(daemon.listen(short_dir)))
            ours.setblocking(False)
            await daemon.until(3)
            unread = False
            assert (await Caller(ours).ask("hello", version=VERSION))["is_operator"]


async def test_a_peer_that_becomes_unread_gets_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.5, where its message has to show who it is: the leases of Slurm's Epilog did not exist for it."""

    def unread(pid: int, **_: object) -> None:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    process = processes.find(os.getpid())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    with ours, os.fdopen(reader, "rb") as left:
        for each in (ours, theirs):
            each.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        monkeypatch.setattr(processes, "process_id", unread)
        async with open_daemon(tmp_path) as daemon:
            recognition = Recognition(theirs, process, is_certain=False, comes_later=True)
            daemon.api.begin_with(Peer(os.getpid(), 0, True, process), theirs, daemon.nursery, recognition)
            caller = Caller(ours)
            await caller.send(encode(Request(1, "hello", {"version": VERSION})), [writer])
            os.close(writer)
            goodbye = await caller.receive()
            assert isinstance(goodbye, Notification)
            assert goodbye.params["message"].startswith("mpsd cannot tell who asks: ")
            await daemon.until(0)
        assert left.read() == b"", "mpsd has closed the descriptor"


async def test_unread_peers_take_no_place_of_operators(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of many users' connections waited for a look, beyond every bound but each user's own."""

    def unread(*_: object, **__: object) -> Peer:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    monkeypatch.setattr(server, "peer_of", unread)
    monkeypatch.setattr(peers, "_UNKNOWN_SECONDS", 60.0)
    async with open_daemon(short_dir, max_connections=16, max_per_user=64) as daemon:
        path = str(daemon.listen(short_dir))
        with contextlib.ExitStack() as opened:
            for _ in range(20):
                ours = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                ours.connect(path)
            ours.setblocking(False)
            assert (await Caller(ours).goodbye())["name"] == "TOO_MANY"
            assert daemon.connections() < 15
            await daemon.call_as(OPERATOR)


async def test_who_is_silent_is_let_go(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, idle_seconds=0.05) as daemon:
        caller = await daemon.call_as()
        assert "0.05 s" in (await caller.goodbye())["message"]
        await daemon.until(0)


async def test_who_waits_for_events_may_be_silent(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, idle_seconds=0.02) as daemon:
        waiting = await daemon.call_as()
        await waiting.ask("events.subscribe", topics=["domain.*"])
        silent = await daemon.call_as()
        await silent.goodbye()  # that takes as long as a silence may last
        daemon.bus.publish("domain.ready", {"domain": "d1"})
        frame = await waiting.receive()
        assert frame is not None
        await waiting.ask("events.unsubscribe")
        await waiting.goodbye()


async def test_a_silent_connection_has_a_code_of_its_own(tmp_path: Path) -> None:
    """Having no request to send is not a program's mistake."""
    async with open_daemon(tmp_path, idle_seconds=0.05, hello_seconds=0.05) as daemon:
        for caller in (daemon.connect(), await daemon.call_as()):
            assert (await caller.goodbye())["name"] == "IDLE"


async def test_nothing_comes_after_a_goodbye(tmp_path: Path) -> None:
    """Also where a reader makes room, so that events could go on, in the moment in which it breaks the protocol."""
    async with open_daemon(tmp_path, max_queued_events=4096) as daemon:
        for _ in range(16):
            caller = await daemon.call_as()
            await caller.ask("events.subscribe", topics=["domain.*"])
            for number in range(1000):
                daemon.bus.publish("domain.ready", {"domain": f"d{number}", "was": None, "gpus": [], "clients": 0})
            await trio.testing.wait_all_tasks_blocked()  # the socket is full
            with contextlib.suppress(BlockingIOError):
                while True:
                    caller.sock.recv(65536)
            caller.sock.send(b"nonsense")
            methods = []
            while (frame := await caller.receive()) is not None:
                assert isinstance(frame, Notification)
                methods.append(frame.method)
            assert methods.index("goodbye") == len(methods) - 1


async def test_who_hangs_up_is_forgotten(tmp_path: Path) -> None:
    """At any point: at once, in the middle of requests, with answers unread, half-open."""
    async with open_daemon(tmp_path) as daemon:
        daemon.connect().sock.close()
        caller = await daemon.call_as()
        for number in range(20):
            await caller.send(encode(Request(number, "status", {})))
        caller.sock.close()
        half = await daemon.call_as()
        half.sock.shutdown(socket.SHUT_WR)
        assert await half.receive() is None
        await daemon.until(0)


async def test_who_does_not_read_answers_is_let_go(tmp_path: Path) -> None:
    """The kernel holds some of the answers; beyond that no caller may keep mpsd waiting."""
    async with open_daemon(tmp_path, send_seconds=0.05) as daemon:
        caller = await daemon.call_as()
        with trio.fail_after(20):
            while daemon.connections():
                try:
                    caller.sock.send(encode(Request(1, "status", {})), socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    await trio.sleep(0.01)
                except OSError:
                    break
                await trio.lowlevel.checkpoint()
        await daemon.until(0)


async def test_a_user_has_a_bounded_number_of_connections(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, max_per_user=3) as daemon:
        held = [await daemon.call_as(OWNER) for _ in range(3)]
        assert (await daemon.connect(OWNER).goodbye())["name"] == "TOO_MANY"
        await daemon.call_as(STRANGER)
        held.pop().sock.close()
        await daemon.until(3)
        await daemon.call_as(OWNER)


async def test_root_of_a_container_does_not_take_the_places_of_root(tmp_path: Path) -> None:
    """With 64 silent subscriptions it kept mpsctl, the device plugin and the prolog of Slurm out, which are root's."""
    async with open_daemon(tmp_path, max_per_user=3) as daemon:
        inside = Peer(999, OPERATOR.uid, is_operator=False)
        for _ in range(3):
            await daemon.call_as(inside)
        assert (await daemon.connect(inside).goodbye())["name"] == "TOO_MANY"
        for _ in range(3):
            await daemon.call_as(OPERATOR)
        assert (await daemon.connect(OPERATOR).goodbye())["name"] == "TOO_MANY"


@pytest.mark.root
@pytest.mark.parametrize("uids", [[0] * 150, range(20_000, 20_300)], ids=["as root", "as many users"])
async def test_root_of_a_container_has_no_connection_of_root_refused(
    short_dir: Path, uids: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that waited to be begun, the oldest of uid 0 was refused, or one of the users who came last."""
    monkeypatch.setattr(arrivals, "_TURN_SECONDS", 10.0)  # as many as a turn can accept, however busy the machine is
    async with open_daemon(short_dir, max_connections=64, max_per_user=16) as daemon:
        path = daemon.listen(short_dir)
        with flood_of_a_container(path, uids), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))
            sock.setblocking(False)
            with flood_of_a_container(path, uids):
                assert (await Caller(sock).ask("hello", version=VERSION))["is_operator"]


async def test_users_cannot_lock_each_other_out(tmp_path: Path) -> None:
    """Eight users with 64 connections each did. A user without a connection gets one, however many others have."""
    async with open_daemon(tmp_path, max_connections=64, max_per_user=16) as daemon:
        for uid in range(4001, 4009):
            before = -1
            while before < (before := daemon.connections()):
                daemon.connect(Peer(999, uid, False))
        await daemon.call_as(OWNER)
        assert "for users with fewer" in (await daemon.connect(OWNER).goodbye())["message"]


async def test_subordinate_uids_have_one_share(tmp_path: Path) -> None:
    """Those of one user's range of /etc/subuid, who could take all places by one connection each."""
    async with open_daemon(tmp_path, parse("eve:100000:65536\n"), max_connections=64, max_per_user=16) as daemon:
        for uid in range(100000, 100016):
            await daemon.call_as(Peer(999, uid, False))
        assert (await daemon.connect(Peer(999, 100016, False)).goodbye())["name"] == "TOO_MANY"
        await daemon.call_as(Peer(999, 165536, False))  # the first uid behind the range
        await daemon.call_as(OWNER)


async def test_users_cannot_lock_operators_out(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, max_connections=16, max_per_user=14) as daemon:
        for _ in range(10):
            await daemon.call_as(STRANGER)
        for uid in range(4001, 4005):
            await daemon.call_as(Peer(999, uid, False))
        assert (await daemon.connect(OWNER).goodbye())["name"] == "TOO_MANY"
        for _ in range(2):
            await daemon.call_as(OPERATOR)
        assert (await daemon.connect(OPERATOR).goodbye())["name"] == "TOO_MANY"


async def test_many_connections_of_a_user_are_no_more_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that comes while 40 connections of a user have requests waiting, is served after a few of these, not after all
    40."""
    begun: list[int] = []

    async def note(call: Any, audit: Any) -> Any:
        begun.append(call.peer.uid)
        return await dispatch(call, audit)

    monkeypatch.setattr(connection, "dispatch", note)
    async with open_daemon(tmp_path) as daemon:
        operator = await daemon.call_as(OPERATOR)
        for caller in [await daemon.call_as(STRANGER) for _ in range(40)]:
            for number in range(5):
                await caller.send(encode(Request(number, "health", {})))
        await operator.ask("health")
        assert begun.index(OPERATOR.uid) < 20


@pytest.mark.parametrize("users", [1, 40])
async def test_misspelt_hellos_of_many_connections_are_no_more_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: int
) -> None:
    """They needed no turn: 64 connections of one user, each with 8,000 values in a frame, let a client's start take 14 s.

    Each user then had a turn: root of a container, with a connection of each of 448 uids, let all others wait for 448 frames.
    """
    rounds, decoded = Rounds(), Counter[int]()

    def note(datagram: Datagram) -> Request:
        decoded[rounds.number] += 1
        return parse_request(datagram)

    monkeypatch.setattr(connection, "parse", note)
    async with open_daemon(tmp_path) as daemon:
        callers = [daemon.connect(Peer(999, 4001 + number % users, False)) for number in range(40)]
        trio.lowlevel.add_instrument(rounds)
        for caller in callers:
            await caller.send(encode(Request(1, "hello", {"misspelt": VERSION})))
        for caller in callers:
            assert isinstance(await caller.receive(), Response)
        trio.lowlevel.remove_instrument(rounds)
    assert decoded.total() == len(callers)
    assert max(decoded.values()) == 1


async def test_connections_that_get_room_together_are_no_more_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a user who does not read the answers, and then reads all of them."""
    rounds, begun, room = Rounds(), Counter[int](), trio.Event()

    async def note(call: Any, audit: Any) -> Any:
        begun[rounds.number] += 1
        return await dispatch(call, audit)

    async def wait_writable(sock: socket.socket) -> None:
        await room.wait()

    monkeypatch.setattr(connection, "dispatch", note)
    async with open_daemon(tmp_path) as daemon:
        callers = [await daemon.call_as(STRANGER) for _ in range(20)]
        monkeypatch.setattr(connection, "has_room", lambda sock: room.is_set())
        monkeypatch.setattr(trio.lowlevel, "wait_writable", wait_writable)
        for caller in callers:
            await caller.send(encode(Request(2, "health", {})))
        await trio.testing.wait_all_tasks_blocked()
        assert not begun.total()
        trio.lowlevel.add_instrument(rounds)
        room.set()
        for caller in callers:
            assert isinstance(await caller.receive(), Response)
        trio.lowlevel.remove_instrument(rounds)
    assert begun.total() == len(callers)
    assert max(begun.values()) == 1


async def test_connections_whose_descriptors_get_room_together_are_no_more_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had taken their turns before: files of a slow server, closed at last, let 63 frames be decoded at once."""
    rounds, decoded, share = Rounds(), Counter[int](), STRANGER.uid

    def note(datagram: Datagram) -> Request:
        decoded[rounds.number] += 1
        return parse_request(datagram)

    monkeypatch.setattr(connection, "parse", note)
    async with open_daemon(tmp_path) as daemon:
        callers = [daemon.connect(STRANGER) for _ in range(20)]
        with daemon.api._closings[False].holding(share, MOST_HELD):
            for caller in callers:
                await caller.send(encode(Request(1, "hello", {"misspelt": VERSION})))
            await trio.testing.wait_all_tasks_blocked()
            assert not decoded.total()
            trio.lowlevel.add_instrument(rounds)
        for caller in callers:
            assert isinstance(await caller.receive(), Response)
        trio.lowlevel.remove_instrument(rounds)
    assert decoded.total() == len(callers)
    assert max(decoded.values()) == 1


async def test_who_is_there_when_mpsd_ends_is_told(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        daemon.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert (await caller.goodbye())["name"] == "STOPPING"
