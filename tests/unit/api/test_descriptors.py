"""Descriptors at the socket: only the methods that take some receive them, in the announced number; all others are closed."""

import os
import resource
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.api.method_table import METHODS
from mpsd.host import descriptors as module
from mpsd.host.descriptors import KERNELS_MOST, close_all
from mpsd.model.arena import GRANULE, MOST_DESCRIPTORS
from mpsd.wire.rpc import Request, Response, encode
from tests.descriptors import opened
from tests.unit.api.fake_daemon import OWNER, STRANGER, open_daemon
from tests.unit.api.test_method_table import CALLS

TAKING = {name for name, method in METHODS.items() if method.takes}
PUT: dict[str, Any] = {"id": 1, "generation": 7, "allocations": [[GRANULE, GRANULE], [2 * GRANULE, GRANULE]]}


def left(before: Collection[str], closed: int = 0) -> bool:
    """Whether descriptors are open that were not, or not so many of those before are closed.

    An earlier test's may still be closed by a thread: they count neither way.
    """
    now = opened()
    return bool(now.difference(before)) or len(now) > len(before) - closed


async def settled(before: Collection[str], closed: int = 0) -> None:
    """Returns when only those of before are open, so many less: those of strangers are closed by a thread."""
    with trio.fail_after(20):
        while left(before, closed):  # noqa: ASYNC110
            await trio.sleep(0.002)


def test_the_end_of_an_earlier_tests_descriptor_is_none_of_this_ones() -> None:
    earlier = os.memfd_create("earlier")
    before = opened()
    ours = os.dup(earlier)
    assert left(before)
    os.close(ours)
    os.close(earlier)
    assert not left(before)


@pytest.mark.parametrize("name", sorted(set(METHODS) - TAKING))
async def test_a_method_that_takes_none_ends_the_conversation(name: str, tmp_path: Path) -> None:
    """Nothing is done, and the request is answered so."""
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        before, state = opened(), daemon.fakes.changes()
        assert await caller.refusal(name, fds=[fd], **CALLS[name]) == "PROTOCOL"
        assert name in (await caller.goodbye())["message"]
        await settled(before, closed=1)  # its connection, at our end
        assert daemon.fakes.changes() == state


WRONG: dict[str, tuple[str, dict[str, Any], int]] = {
    "put with none": ("arena.put", PUT, 0),
    "put with too few": ("arena.put", PUT, 1),
    "put with too many": ("arena.put", PUT, 3),
    "put with as many as there may be": ("arena.put", PUT, MOST_DESCRIPTORS),
    "a layout without one": ("arena.commit", {"id": 1, "generation": 7, "has_layout": True}, 0),
    "a layout with two": ("arena.commit", {"id": 1, "generation": 7, "has_layout": True}, 2),
    "no layout with one": ("arena.commit", {"id": 1, "generation": 7, "has_layout": False}, 1),
    "put that is none": ("arena.put", {**PUT, "allocations": [[1, GRANULE]]}, 1),
    "put of nothing": ("arena.put", {**PUT, "allocations": []}, 0),
    "an unknown parameter": ("arena.put", {**PUT, "bogus": 1}, 2),
}


@pytest.mark.parametrize("way", WRONG)
async def test_another_number_than_was_said_is_refused(way: str, tmp_path: Path) -> None:
    """They are closed; the conversation goes on."""
    name, said, count = WRONG[way]
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        before, state = opened(), daemon.fakes.changes()
        assert await caller.refusal(name, fds=[fd] * count, **said) == "BAD_REQUEST"
        await caller.ask("health")
        assert daemon.fakes.changes() == state
        assert not left(before)


@pytest.mark.parametrize(
    ("peer", "said", "refusal"),
    [
        (STRANGER, {}, "NO_SUCH_ARENA"),
        (OWNER, {"id": 77}, "NO_SUCH_ARENA"),
        (OWNER, {"id": 2}, "STALE_GENERATION"),
        (OWNER, {"generation": 6}, "STALE_GENERATION"),
        (OWNER, {"generation": 8}, "STALE_GENERATION"),
        (OWNER, {"generation": 2**63 - 1}, "STALE_GENERATION"),
        (OWNER, {"allocations": [[GRANULE, GRANULE], [0, GRANULE]]}, "BAD_REQUEST"),
        (OWNER, {"allocations": [[GRANULE, 4096 * GRANULE], [2 * GRANULE, GRANULE]]}, "NO_ROOM"),
    ],
)
async def test_what_a_refusal_leaves_is_nothing(peer: Any, said: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    """Before the service has them, or after: one of both closes them."""
    async with open_daemon(tmp_path) as daemon:
        fds, caller = [daemon.any_fd(), daemon.any_fd()], await daemon.call_as(peer)
        before = opened()
        assert await caller.refusal("arena.put", fds=fds, **{**PUT, **said}) == refusal
        await caller.ask("health")
        kept = len(daemon.fakes.arenas.memory[1].held) - 1  # a fake may keep the first of two
        assert len(opened().difference(before)) == kept


async def test_what_is_put_comes_out_again_with_close_on_exec(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        first, second = daemon.any_fd(), daemon.any_fd()
        assert (await caller.ask("arena.put", fds=[first, second], **PUT))["used_bytes"] == 3 * GRANULE
        layout = daemon.any_fd()
        told = await caller.ask("arena.commit", fds=[layout], id=1, generation=7, has_layout=True)
        assert told["allocations"] == 3
        held = daemon.fakes.arenas.memory[1].held
        assert not any(os.get_inheritable(fd) for _, fd in held.values())
        assert await caller.ask("arena.take", id=1, after=0, limit=2) == {
            "commit": told["commit"],
            "items": [[GRANULE, GRANULE, 1], [2 * GRANULE, GRANULE, 1]],
            "next": None,
        }
        taken = caller.take_fds()
        assert [os.fstat(fd).st_ino for fd in taken] == [os.fstat(fd).st_ino for fd in (first, second)]
        close_all(taken)
        assert (await caller.ask("arena.take", id=1, after=0, limit=1, known=1))["next"] == GRANULE
        assert caller.take_fds() == []
        assert (await caller.ask("arena.take", id=1, after=2 * GRANULE))["items"] == []
        assert (await caller.ask("arena.layout", id=1))["layout_bytes"] == 2
        [found] = caller.take_fds()
        assert os.pread(found, 10, 0) == b"{}"
        os.close(found)


async def test_what_is_given_is_closed_here_when_it_was_sent(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        before = opened()
        for _ in range(50):
            await caller.ask("arena.take", id=1)
            await caller.ask("arena.layout", id=1)
            close_all(caller.take_fds())
        await settled(before)


async def test_what_is_given_to_somebody_who_has_gone_is_closed(tmp_path: Path) -> None:
    """At any point: before the answer, with answers unread."""
    async with open_daemon(tmp_path) as daemon:
        before = opened()
        for asked in (1, 3, 20):
            caller = await daemon.call_as(OWNER)
            for number in range(asked):
                await caller.send(encode(Request(number, "arena.take", {"id": 1})))
            caller.close()
            await daemon.until(0)
        await settled(before)


async def test_an_answer_that_nobody_reads_holds_no_descriptor(tmp_path: Path) -> None:
    """60 connections that read nothing held 128 each, which were all that mpsd may open where that is 4,096: no client of
    another user started, for as long as the user liked."""
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        before = opened()
        asked = 0
        with trio.fail_after(20):
            while asked < 10_000:
                try:
                    caller.sock.send(encode(Request(asked, "arena.take", {"id": 1})), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                asked += 1
                await trio.testing.wait_all_tasks_blocked()
        assert asked < 10_000
        await settled(before)


@pytest.mark.parametrize("count", [MOST_DESCRIPTORS + 1, KERNELS_MOST])
async def test_more_than_may_come_end_the_conversation(count: int, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        before = opened()
        await caller.send(encode(Request(2, "arena.put", PUT)), [fd] * count)
        assert str(MOST_DESCRIPTORS) in (await caller.goodbye())["message"]
        await settled(before, closed=1)


async def test_a_daemon_that_can_open_no_more_says_so(tmp_path: Path) -> None:
    """The kernel omits descriptors for which mpsd has no room: such a request must not pass for one that carries fewer."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        before = opened()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, limits[1]))
            with suppress(OSError):
                while True:  # the gaps below
                    filled.append(os.dup(fd))
            os.close(filled.pop())
            await caller.send(encode(Request(2, "arena.put", PUT)), [fd, fd])
            assert (await caller.goodbye())["name"] == "PROTOCOL"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            close_all(filled)
        await settled(before, closed=1)


NO_REQUESTS = {"odd": b"\xc1", "the end": b"", "a response": encode(Response(1, None, None)), "long": bytes(65537)}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS)
@pytest.mark.parametrize("has_greeted", [False, True])
async def test_with_what_is_no_request_none_is_kept(data: bytes, has_greeted: bool, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        fd = daemon.any_fd()
        before = opened()
        caller = await daemon.call_as(OWNER) if has_greeted else daemon.connect(OWNER)
        await caller.send(data, [fd] * 5)
        await daemon.until(0)
        caller.close()
        await settled(before)


async def test_those_of_requests_that_wait_go_with_the_connection(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        fd = daemon.any_fd()
        before = opened()
        caller = await daemon.call_as(OWNER)
        for number in range(5):
            await caller.send(encode(Request(number, "arena.put", {**PUT, "generation": 1})), [fd, fd])
        caller.close()
        await daemon.until(0)
        await settled(before)


async def test_a_put_that_is_cut_short_by_the_end_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has taken them, and is cancelled: it closes them (services.py, Arenas)."""
    async with open_daemon(tmp_path) as daemon:
        fd = daemon.any_fd()
        before = opened()
        began = trio.Event()

        async def wait_for_ever(arena_id: int, generation: int, process: Any, allocations: Any, fds: list[int]) -> Any:
            began.set()
            try:
                await trio.sleep_forever()
            finally:
                close_all(fds)

        monkeypatch.setattr(daemon.fakes.arenas, "put", wait_for_ever)
        caller = await daemon.call_as(OWNER)
        await caller.send(encode(Request(2, "arena.put", PUT)), [fd, fd])
        await began.wait()
        daemon.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert (await caller.goodbye())["name"] == "STOPPING"
            caller.close()
            await settled(before)


async def test_a_bug_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        before = opened()
        monkeypatch.setattr(daemon.fakes, "find_process", lambda pid: 1 / 0)
        monkeypatch.setattr(daemon.fakes.arenas, "find_id", lambda number: 1 / 0)
        with capture_logs() as logged:
            await caller.send(encode(Request(2, "arena.put", PUT)), [fd, fd])
            assert await caller.receive() is None
        assert [event["event"] for event in logged] == ["api.bug"]
        await settled(before, closed=1)


def test_the_kernels_bound_is_the_kernels() -> None:
    """With room for all that may come, the kernel never closes one in our name while we receive."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull) as null:
        socket.send_fds(ours, [b"x"], [null.fileno()] * KERNELS_MOST)
        with pytest.raises(OSError, match="Invalid"):
            socket.send_fds(ours, [b"x"], [null.fileno()] * (KERNELS_MOST + 1))
        _, ancillary, flags, _ = theirs.recvmsg(10, module.ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        found = module.received(ancillary)
        assert (len(found), flags & socket.MSG_CTRUNC) == (KERNELS_MOST, 0)
        close_all(found.take())
