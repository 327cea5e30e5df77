"""Conversations at real sockets: hello, broken rules, silence, floods, and what is left of them (nothing)."""

import array
import os
import socket
from pathlib import Path
from typing import IO, Any

import msgpack
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from structlog.testing import capture_logs

from mpsd.errors import NotAllowed
from mpsd.host import peers
from mpsd.model.service import Instruction, Order
from mpsd.wire.rpc import MAX_BYTES, Request, Response, encode
from tests.descriptors import descriptors
from tests.speaking import send_from_a_child
from tests.unit.api.fake_daemon import OWNER, Caller, audit_text, open_daemon
from tests.unit.wire.test_rpc import MALFORMED


def null_device() -> IO[str]:
    return open(os.devnull)


async def test_hello_tells_who_is_who(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        told = await daemon.connect(OWNER).ask("hello", version=1, program="a test")
        assert (told["version"], told["uid"], told["pid"], told["is_operator"]) == (1, 1000, 586, False)
        assert told["datagram_bytes"] == MAX_BYTES
        assert {"hello", "lease.create"} <= set(told["methods"])


@pytest.mark.parametrize("knows_pidfds", [True, False])
async def test_on_an_older_kernel_a_process_is_known_by_what_it_sends_itself(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, knows_pidfds: bool
) -> None:
    """Linux before 6.5: the pid of a container's process went to one of root's, and mpsd answered the former as the latter."""
    if not knows_pidfds:
        monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    hello, asked, by_another, by_itself = (
        encode(Request(number, method, {"version": 1} if method == "hello" else {}))
        for number, method in enumerate(("hello", "blame.list", "blame.list", "blame.list"))
    )
    async with open_daemon(tmp_path) as daemon:
        path = daemon.listen(short_dir)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))
            sock.setblocking(False)
            caller, were_refused = Caller(sock), []
            sock.send(hello)
            sock.send(asked)
            await caller.receive()
            for send in (lambda: send_from_a_child(sock, by_another), lambda: sock.send(by_itself), lambda: None):
                answer = await caller.receive()
                assert isinstance(answer, Response)
                were_refused.append(answer.error is not None and answer.error["name"] == "NOT_ALLOWED")
                send()
    assert were_refused == ([False] * 3 if knows_pidfds else [True, True, False])


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
async def test_another_version_is_told_so_and_let_go(version: int, tmp_path: Path) -> None:
    """Regardless of the rest of the hello: this version does not judge fields that a later version adds."""
    async with open_daemon(tmp_path) as daemon:
        caller = daemon.connect()
        assert await caller.refusal("hello", version=version, later="word") == "PROTOCOL"
        assert str(version) in (await caller.goodbye())["message"]
        await daemon.until(0)


async def test_nothing_is_answered_before_hello(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        before = daemon.fakes.changes()
        caller = daemon.connect()
        assert await caller.refusal("lease.release", id=1) == "PROTOCOL"
        await caller.goodbye()
        assert daemon.fakes.changes() == before


async def test_a_hello_that_is_misspelt_can_be_said_again(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = daemon.connect()
        assert await caller.refusal("hello") == "BAD_REQUEST"
        assert await caller.refusal("hello", version="1") == "BAD_REQUEST"
        await caller.ask("hello", version=1)


async def test_hello_is_said_once(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        assert await caller.refusal("hello", version=1) == "PROTOCOL"
        await caller.goodbye()


SENDABLE = {name: data for name, data in MALFORMED.items() if data}  # no bytes are the end


@pytest.mark.parametrize("data", SENDABLE.values(), ids=SENDABLE.keys())
@pytest.mark.parametrize("has_greeted", [False, True], ids=["before hello", "after hello"])
async def test_a_malformed_frame_ends_the_conversation_alone(data: bytes, has_greeted: bool, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        bystander = await daemon.call_as(OWNER)
        caller = await daemon.call_as() if has_greeted else daemon.connect()
        await caller.send(data)
        assert (await caller.goodbye())["name"] == "PROTOCOL"
        await bystander.ask("health")
        await daemon.until(1)


@pytest.mark.parametrize("frame", [Response(1, None, None), None], ids=["a response", "a notification"])
async def test_only_requests_come_from_clients(frame: Response | None, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        await caller.send(encode(frame) if frame else msgpack.packb([2, "event", [{}]]))
        assert (await caller.goodbye())["name"] == "PROTOCOL"


async def test_a_datagram_over_the_bound_is_refused(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        await caller.send(bytes(MAX_BYTES + 1))
        assert str(MAX_BYTES) in (await caller.goodbye())["message"]


async def test_a_datagram_at_the_bound_is_read(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        room = MAX_BYTES - len(encode(Request(9, "status", {"x": "a" * 60000})))
        await caller.send(encode(Request(9, "status", {"x": "a" * (60000 + room)})))
        frame = await caller.receive()
        assert isinstance(frame, Response)
        assert frame.error is not None
        assert frame.error["name"] == "BAD_REQUEST"


async def test_descriptors_are_refused_and_none_is_kept(tmp_path: Path) -> None:
    """As many as the kernel lets anybody send at once, again and again."""
    async with open_daemon(tmp_path) as daemon:
        await (await daemon.call_as()).ask("health")
        with null_device() as null:
            flood = array.array("i", [null.fileno()] * 253)
            before = descriptors()
            for _ in range(20):
                caller = await daemon.call_as()
                caller.sock.sendmsg(
                    [encode(Request(2, "status", {}))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, flood)], socket.MSG_NOSIGNAL
                )
                assert "descriptors" in (await caller.goodbye())["message"]
                caller.sock.close()
            await daemon.until(1)
            assert descriptors() == before


async def test_a_flood_behind_a_broken_rule_leaves_nothing(tmp_path: Path) -> None:
    """Data that still waits in the socket when the conversation ends is discarded."""
    async with open_daemon(tmp_path) as daemon:
        await daemon.call_as()
        with null_device() as null:
            before = descriptors()
            for _ in range(10):
                caller = daemon.connect()
                for _ in range(5):
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * 100))]
                    caller.sock.sendmsg([b"x"], ancillary, socket.MSG_NOSIGNAL)
                await caller.goodbye()
                caller.sock.close()
            await daemon.until(1)
            assert descriptors() == before


async def test_requests_that_wait_are_answered_in_their_order(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        for number in range(50, 100):
            await caller.send(encode(Request(number, "health", {})))
        for number in range(50, 100):
            frame = await caller.receive()
            assert isinstance(frame, Response)
            assert frame.id == number


async def test_what_was_waited_for_is_answered_in_the_turn_in_which_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby waits like this for its promotion; each further turn of the loop would do other work first."""
    async with open_daemon(tmp_path) as daemon:
        caller, known = await daemon.call_as(), trio.Event()
        get = daemon.fakes.failover.get

        async def get_later(*asked: Any) -> Any:
            await known.wait()
            return await get(*asked)

        monkeypatch.setattr(daemon.fakes.failover, "get", get_later)
        await caller.send(encode(Request(2, "service.get", {"name": "weights", "after": 1, "wait_seconds": 9.0})))
        await trio.testing.wait_all_tasks_blocked()
        known.set()
        for _ in range(2):  # within a turn the order is undefined
            await trio.lowlevel.checkpoint()
        assert caller.sock.recv(1 << 16)
        await caller.ask("health")


@pytest.mark.parametrize("then", ["returns", "raises"])
async def test_what_is_answered_before_a_method_returns_is_answered_once(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby learns of its promotion before mpsd continues with the consequences."""
    async with open_daemon(tmp_path) as daemon:
        caller, goes_on = await daemon.call_as(OWNER), trio.Event()
        following = Instruction(7, Order.SERVE, 2, "", 0, None)

        async def follow(*asked: Any) -> Any:
            for serial in (8, 9):
                asked[-1](replace(following, serial=serial))
            await goes_on.wait()
            if then == "raises":
                raise NotAllowed("it is no member any more")
            return following

        monkeypatch.setattr(daemon.fakes.failover, "follow", follow)
        await caller.send(encode(Request(50, "service.follow", {"id": 1, "after": 1, "wait_seconds": 9.0})))
        await caller.send(encode(Request(51, "health", {})))
        first = await caller.receive()
        assert isinstance(first, Response)
        assert (first.id, first.error, first.result["serial"]) == (50, None, 8)
        goes_on.set()
        second = await caller.receive()
        assert isinstance(second, Response)
        assert (second.id, second.error) == (51, None)


async def test_who_cannot_be_answered_before_a_method_returns_is_answered_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events wait until it reads, and so does the answer; mpsd does not wait."""
    async with open_daemon(tmp_path) as daemon:
        caller, is_over = await daemon.call_as(OWNER), trio.Event()

        async def follow(*asked: Any) -> Instruction:
            for _ in range(1000):
                daemon.bus.publish("service.ready", {"owner_uid": OWNER.uid, "name": "x" * 1000})
            await trio.testing.wait_all_tasks_blocked()
            asked[-1](Instruction(8, Order.SERVE, 2, "", 0, None))
            is_over.set()
            return Instruction(9, Order.SERVE, 2, "", 0, None)

        monkeypatch.setattr(daemon.fakes.failover, "follow", follow)
        await caller.ask("events.subscribe", topics=["service.*"])
        await caller.send(encode(Request(50, "service.follow", {"id": 1, "after": 1, "wait_seconds": 9.0})))
        await is_over.wait()
        while not isinstance(frame := await caller.receive(), Response):
            assert frame is not None
        assert (frame.id, frame.error, frame.result["serial"]) == (50, None, 9)
        await caller.ask("health")


async def test_a_bug_ends_one_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_daemon(tmp_path) as daemon:
        bystander, caller = await daemon.call_as(), await daemon.call_as()
        monkeypatch.setattr(daemon.fakes.leases, "leases", lambda: 1 / 0)
        with capture_logs() as logged:
            await caller.send(encode(Request(2, "status", {})))
            assert await caller.receive() is None
        assert [event["event"] for event in logged] == ["api.bug"]
        await bystander.ask("health")


async def test_a_bug_in_a_change_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        monkeypatch.setattr(daemon.fakes.leases, "release", lambda lease_id: 1 / 0)
        with capture_logs():
            await caller.send(encode(Request(2, "lease.release", {"id": 1})))
            assert await caller.receive() is None
        daemon.audit.close()
    assert '"outcome":"bug"' in audit_text(tmp_path)
