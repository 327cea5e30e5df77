"""Descriptors of calls and answers in both clients: they arrive where they belong, and none is left behind on any way out."""

import errno
import fcntl
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from mpsd_client import AsyncClient, Client, ProtocolError, Refused, calls, values
from mpsd_client import _conversation as conversation
from mpsd_client._conversation import Conversation
from mpsd_client._datagrams import close_all

from mpsd.host.listeners import listen
from mpsd.model.arena import GRANULE
from tests.descriptors import descriptors
from tests.unit.client.test_clients import admit_this_process, blocking, serving


@pytest.fixture
def two() -> Iterator[tuple[int, int]]:
    """Two descriptors that the receiver has to close."""
    made = (os.memfd_create("one"), os.memfd_create("two"))
    yield made
    close_all(fd for fd in made if is_open(fd))


def is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def answer(number: int, result: Any = None, error: Any = None) -> bytes:
    return msgpack.packb([1, number, error, result])


TAKEN = {"commit": 1, "items": [[0, GRANULE], [GRANULE, GRANULE]], "next": None}


def test_who_asked_gets_them(two: tuple[int, int]) -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.arena_take(1))
    talk.receive(answer(number, TAKEN), two)
    assert talk.result(number).fds == two
    talk.forget(number)
    assert all(map(is_open, two))


REFUSAL = {"code": 20, "name": "NO_SUCH_ARENA", "message": "no"}
STRAY: dict[str, Callable[[Conversation, int, tuple[int, int]], None]] = {
    "nobody waits for it": lambda talk, number, fds: talk.receive(answer(number + 1, TAKEN), fds),
    "it is given up": lambda talk, number, fds: (talk.receive(answer(number, TAKEN), fds), talk.forget(number))[0],
    "a refusal": lambda talk, number, fds: read(talk, number, answer(number, None, REFUSAL), fds, Refused),
    "too many for its items": lambda talk, number, fds: read(
        talk, number, answer(number, {"items": [[0, GRANULE]], "next": None}), fds, ProtocolError
    ),
    "no result of this sort": lambda talk, number, fds: read(talk, number, answer(number, "nonsense"), fds, Exception),
    "an answer again": lambda talk, number, fds: (talk.receive(answer(number, TAKEN)), talk.receive(answer(number), fds))[0],
    "an event": lambda talk, number, fds: talk.receive(
        msgpack.packb([2, "event", [{"topic": "arena.lost", "time": 1.0, "facts": {}}]]), fds
    ),
    "no frame": lambda talk, number, fds: refuse(lambda: talk.receive(b"\xc1", fds)),
    "no frame of mpsd's": lambda talk, number, fds: refuse(lambda: talk.receive(msgpack.packb([0, 1, "x", []]), fds)),
    "the end": lambda talk, number, fds: talk.receive(b"", fds),
}


def read(talk: Conversation, number: int, data: bytes, fds: tuple[int, int], wanted: type[Exception]) -> None:
    talk.receive(data, fds)
    with pytest.raises(wanted):
        talk.result(number)
    talk.forget(number)


def refuse(work: Callable[[], None]) -> None:
    with pytest.raises(ProtocolError):
        work()


@pytest.mark.parametrize("way", STRAY)
def test_what_nobody_gets_is_closed(way: str, two: tuple[int, int]) -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.arena_take(1))
    STRAY[way](talk, number, two)
    assert not any(map(is_open, two))


def test_a_call_that_expects_none_keeps_none(two: tuple[int, int]) -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.arena_drop(1, 7, [0]))
    talk.receive(answer(number, {"used_bytes": 0}), two)
    assert talk.result(number) == values.ArenaUse(0)
    talk.forget(number)
    assert not any(map(is_open, two))


def test_a_layout_has_one_or_none(two: tuple[int, int]) -> None:
    talk = Conversation()
    for fds, found in (((), None), (two[:1], two[0]), (two, ProtocolError)):
        number, _ = talk.ask(calls.arena_layout(1))
        talk.receive(answer(number, {"layout_hash": "", "layout_bytes": 0}), fds)
        if found is ProtocolError:
            refuse(lambda number=number: talk.result(number))  # type: ignore[misc]
        else:
            assert talk.result(number).fd == found


def put_and_take(mpsd: Client) -> bytes:
    """Return the contents of an arena into which this was put."""
    memory, layout = os.memfd_create("memory"), os.memfd_create("layout")
    try:
        os.write(memory, b"weights")
        os.write(layout, b"{}")
        mpsd.ask(calls.arena_put(1, 7, [(GRANULE, 2 * GRANULE)], [memory]))
        mpsd.ask(calls.arena_commit(1, 7, layout))
    finally:
        close_all((memory, layout))
    taken = mpsd.ask(calls.arena_take(1, after=0))
    found = mpsd.ask(calls.arena_layout(1))
    assert (taken.items, found.layout_bytes, found.fd) == (((GRANULE, 2 * GRANULE, 1),), 2, found.fd)
    assert found.fd is not None
    assert not any(map(os.get_inheritable, (*taken.fds, found.fd)))
    try:
        return os.pread(taken.fds[0], 100, 0) + os.pread(found.fd, 100, 0)
    finally:
        close_all((*taken.fds, found.fd))


async def test_memory_goes_there_and_back(tmp_path: Path, short_dir: Path) -> None:
    def run(path: Path) -> bytes:
        with Client(path) as mpsd:
            return put_and_take(mpsd)

    async with serving(tmp_path, short_dir) as (daemon, path):
        admit_this_process(daemon)
        assert await blocking(run, path) == b"weights{}"


class Crowded:
    """A socket for which the kernel has too many descriptors on their way, once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.refused = sock, 0

    def sendmsg(self, data: list[bytes], ancillary: list[Any]) -> int:
        if ancillary and not self.refused:
            self.refused += 1
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        return self._sock.sendmsg(data, ancillary)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


async def test_too_many_on_their_way_is_a_matter_of_time(tmp_path: Path, short_dir: Path) -> None:
    """The bound counts for the user, and other programs of the user send some too."""

    def run(path: Path) -> bytes:
        with Client(path) as mpsd:
            mpsd._sock = Crowded(mpsd._sock)  # type: ignore[assignment]
            return put_and_take(mpsd)

    async with serving(tmp_path, short_dir) as (daemon, path):
        admit_this_process(daemon)
        assert await blocking(run, path) == b"weights{}"
        async with AsyncClient(path) as mpsd:
            crowded = mpsd._sock = Crowded(mpsd._sock)  # type: ignore[assignment]
            memory = os.memfd_create("memory")
            await mpsd.ask(calls.arena_put(1, 7, [(8 * GRANULE, GRANULE)], [memory]))
            os.close(memory)
            assert crowded.refused == 1


async def test_tasks_that_give_up_leave_none(tmp_path: Path, short_dir: Path) -> None:
    """The task that reads for the others closes descriptors without a receiver."""

    async def hesitate(mpsd: AsyncClient) -> None:
        for _ in range(30):
            with trio.move_on_after(0.0003):
                close_all((await mpsd.ask(calls.arena_take(1))).fds)

    async with serving(tmp_path, short_dir) as (daemon, path):
        admit_this_process(daemon)
        async with AsyncClient(path) as mpsd:
            before = descriptors()
            close_all((await mpsd.ask(calls.arena_take(1))).fds)
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(hesitate, mpsd)
            await mpsd.ask(calls.health())  # behind all answers
            with trio.fail_after(10):
                while descriptors() > before:  # noqa: ASYNC110 - the daemon of this test closes its own in a thread
                    await trio.sleep(0.01)


def serve_one(listener: socket.socket, reply: Callable[[socket.socket, int], None]) -> None:
    """Serve one connection: send hello, and then the given answer to the first call."""
    listener.setblocking(True)
    hello = {"version": 1, "minor": 0, "program": "", "uid": 0, "pid": 1, "is_operator": True, "idle_seconds": 1.0,
             "datagram_bytes": 65536, "page": 1000, "methods": []}  # fmt: skip
    accepted, _ = listener.accept()
    with accepted:
        accepted.send(answer(msgpack.unpackb(accepted.recv(65536))[1], hello))
        reply(accepted, msgpack.unpackb(accepted.recv(65536))[1])
        accepted.recv(65536)


def fill(fd: int, filled: list[int]) -> None:
    """Open files until the limit is reached."""
    while True:
        try:
            filled.append(os.dup(fd))
        except OSError:
            return


def test_a_process_with_no_room_for_them_is_told(short_dir: Path, two: tuple[int, int]) -> None:
    """The answer is there, its descriptors are not: neither is taken for the other."""
    path = short_dir / "mpsd.sock"
    is_full, limits = threading.Event(), resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []

    def reply(accepted: socket.socket, number: int) -> None:
        assert is_full.wait(20)
        socket.send_fds(accepted, [answer(number, TAKEN)], two)

    with listen(path, 0o600) as listener:
        serving_thread = threading.Thread(target=serve_one, args=(listener, reply), daemon=True)
        serving_thread.start()
        with Client(path) as mpsd:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
                fill(two[0], filled)
                is_full.set()
                with pytest.raises(OSError, match="no room") as refused:
                    mpsd.ask(calls.arena_take(1))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                close_all(filled)
        serving_thread.join(20)
    assert refused.value.errno == errno.EMFILE


def test_a_call_says_how_many_it_carries() -> None:
    assert calls.arena_put(1, 7, [(0, GRANULE)], [5]).fds == (5,)
    assert calls.arena_commit(1, 7).fds == ()
    assert calls.arena_commit(1, 7, 5).params["has_layout"] is True
    assert conversation.MAX_BYTES == 65536
