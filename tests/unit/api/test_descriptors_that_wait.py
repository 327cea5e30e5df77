"""Descriptors that another user can make block in close(2) or fstat(2): no other caller waits."""

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mpsd.api.authority import Peer
from mpsd.api.connection import Connection
from mpsd.host import descriptors as module
from mpsd.host.descriptors import MOST_CLOSINGS, close_all
from mpsd.model.arena import GRANULE, Arena
from mpsd.model.process import ProcessId
from mpsd.wire.rpc import Request, Response, encode
from tests.descriptors import descriptors, opened
from tests.lingering import lingering
from tests.unit.api.fake_daemon import OPERATOR, OWNER, PATIENCE_SECONDS, STRANGER, open_daemon
from tests.unit.api.file_server import FLUSH, serve
from tests.unit.api.test_descriptors import PUT, settled


@pytest.fixture
def odd() -> Iterator[dict[str, int]]:
    """Descriptors that may block, or are not memory in any case."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    file = os.__file__  # not in /tmp: files of a tmpfs, as Debian 13 has it there, are memory files
    files = {"a file": os.open(file, os.O_RDONLY), "a directory": os.open("/", os.O_RDONLY), "proc": os.open("/proc/stat", 0)}
    yield {"a socket": ours.fileno(), "a pipe": reader, **files, "a pidfd": (pidfd := os.pidfd_open(os.getpid()))}
    ours.close()
    theirs.close()
    close_all((reader, writer, pidfd, *files.values()))


async def test_no_service_sees_what_may_make_it_wait(odd: dict[str, int], tmp_path: Path) -> None:
    """A file may be served by its owner, who need not answer: one look at it would stop everybody."""
    async with open_daemon(tmp_path) as daemon:
        caller, good = await daemon.call_as(OWNER), daemon.any_fd()
        before, state = descriptors(), daemon.fakes.changes()
        for name, fd in odd.items():
            response = await caller.call("arena.put", fds=[good, fd], **PUT)
            assert response.error is not None, name
            assert "neither a GPU's nor a memory file" in response.error["message"], name
        await caller.ask("health")  # those of the last one are closed before it
        assert (descriptors(), daemon.fakes.changes()) == (before, state)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "memory"])
def test_devices_and_memory_files_wait_for_nobody(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """/dev/null stands for /dev/nvidiactl, and has the major number of /dev/zero."""
    monkeypatch.setattr(module, "GPU_DEVICES", ("/dev/absent", "/dev/null"))
    fd = os.memfd_create("memory") if path == "memory" else os.open(path, os.O_RDONLY)
    try:
        assert module.is_prompt(fd)
    finally:
        os.close(fd)
    assert not module.is_prompt(fd)


@pytest.mark.parametrize("gpu", [(), ("/dev/absent",), ("/dev/null",)])
def test_a_device_that_is_no_gpu_may_wait(monkeypatch: pytest.MonkeyPatch, gpu: tuple[str, ...]) -> None:
    """The last close of /dev/vhost-net waits for a thread of who opened it: stopped, it holds also a killed process."""
    monkeypatch.setattr(module, "GPU_DEVICES", gpu)
    fd = os.open("/dev/ptmx", os.O_RDONLY | os.O_NOCTTY)
    assert not module.is_prompt(fd)
    os.close(fd)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe: closing it blocks until the test writes to it, as a file server can cause."""
    reader, writer = os.pipe()

    def close(fds: list[int]) -> None:
        if fds:
            os.read(reader, 1)
        close_all(fds)

    monkeypatch.setattr(module, "close_all", close)
    yield reader, writer
    os.close(writer)
    os.close(reader)


async def test_a_descriptor_that_does_not_close_holds_up_nobody_else(stuck: tuple[int, int], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        fd, caller = daemon.any_fd(), await daemon.call_as(OWNER)
        await caller.send(encode(Request(2, "arena.put", PUT)), [fd])
        await caller.send(encode(Request(3, "health", {})))
        assert isinstance(await caller.receive(), Response)
        bystander = await daemon.call_as(OWNER)
        await bystander.ask("health")
        await wait_all_tasks_blocked()
        assert daemon.connections() == 2
        before = opened()
        os.write(stuck[1], b"x")
        frame = await caller.receive()  # of the request behind it
        assert isinstance(frame, Response)
        assert frame.id == 3
        await settled(before, closed=1)


async def test_root_of_a_container_does_not_keep_operators_waiting(stuck: tuple[int, int], tmp_path: Path) -> None:
    """Its slow descriptors counted as those of root of the host, from whom mpsd took no request until they were closed."""
    async with open_daemon(tmp_path) as daemon:
        for _ in range(MOST_CLOSINGS):
            inside = await daemon.call_as(Peer(999, OPERATOR.uid, is_operator=False))
            await inside.send(encode(Request(2, "health", {})), [daemon.any_fd()])
        await wait_all_tasks_blocked()
        try:
            await (await daemon.call_as(OPERATOR)).ask("health")
        finally:
            os.write(stuck[1], bytes(MOST_CLOSINGS))


async def test_a_file_is_closed_while_its_request_waits(
    odd: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who read no answers had it open in mpsd for as long: if mpsd was killed then, its silent server kept that process."""
    waits, may_go = trio.Event(), trio.Event()

    async def until_room(self: Connection) -> None:
        waits.set()
        await may_go.wait()

    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        monkeypatch.setattr(Connection, "_until_room", until_room)
        with trio.fail_after(PATIENCE_SECONDS):
            before = opened()
            await caller.send(encode(Request(2, "arena.put", PUT)), [odd["a file"], daemon.any_fd()])
            await waits.wait()
            while any(each.endswith(os.__file__) for each in opened() - before):  # noqa: ASYNC110  nobody is told
                await trio.sleep(0.001)
            may_go.set()
            response = await caller.receive()
        assert isinstance(response, Response)
        assert response.error is not None
        assert "neither a GPU's nor a memory file" in response.error["message"]


@pytest.mark.parametrize("path", ["/dev/null", "memory"])
async def test_what_the_kernel_closes_slowly_holds_up_nobody(stuck: tuple[int, int], path: str) -> None:
    """The last descriptor of a GPU's memory, or of a large memory file, frees it."""
    fd = os.memfd_create("memory") if path == "memory" else os.open(path, os.O_RDONLY)
    module.close_soon([fd])
    os.fstat(fd)  # not yet closed, and we are back
    os.write(stuck[1], b"x")
    with trio.fail_after(PATIENCE_SECONDS):
        while is_open(fd):  # noqa: ASYNC110  nobody is told
            await trio.sleep(0.001)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_name_of_a_device_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server can have files that it calls devices; they cannot be opened, but named."""
    monkeypatch.setattr(module, "GPU_DEVICES", ("/dev/null",))
    fd = os.open("/dev/null", os.O_PATH)
    assert not module.is_prompt(fd)
    os.close(fd)


@pytest.mark.slow
@pytest.mark.root
def test_the_name_of_a_device_of_a_file_server_is_not_looked_at(tmp_path: Path) -> None:
    """fstat on it waits for the server: mpsd would stand still for as long as its owner likes."""
    with ExitStack() as mounted:
        try:
            server = mounted.enter_context(serve(tmp_path, stat.S_IFCHR | 0o666))
        except OSError as exc:
            pytest.skip(f"nothing can be mounted here: {exc}")
        fd = os.open(tmp_path / "file", os.O_PATH)
        server.is_silent = True
        assert not module.is_prompt(fd)
        assert not server.asked
        mounted.close()
        os.close(fd)


SERVED: dict[str, dict[str, Any]] = {
    "arena.put": {**PUT, "allocations": [[GRANULE, GRANULE]]},
    "arena.commit": {"id": 1, "generation": 7, "has_layout": True},
    "health": {},
}


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("name", SERVED)
async def test_a_file_whose_server_does_not_answer_stops_nobody(name: str, tmp_path: Path) -> None:
    """It is not looked at, and closed by a thread: its own connection waits for that, and no other."""
    place = tmp_path / "served"
    place.mkdir()
    with ExitStack() as mounted:
        try:
            server = mounted.enter_context(serve(place))
        except OSError as exc:
            pytest.skip(f"nothing can be mounted here: {exc}")
        fd = os.open(place / "file", os.O_RDONLY)
        async with open_daemon(tmp_path) as daemon:
            caller = await daemon.call_as(OWNER)
            server.is_silent = True
            await caller.send(encode(Request(2, name, SERVED[name])), [fd])
            frame = await caller.receive()
            assert isinstance(frame, Response)
            assert frame.error is not None
            assert await trio.to_thread.run_sync(server.heard.wait, PATIENCE_SECONDS)
            assert server.asked == [FLUSH], "closed, and nothing else"
            for _ in range(20):
                await (await daemon.call_as(OWNER)).ask("health")
            assert daemon.connections() == 21
            mounted.close()
            if name == "health":
                await caller.goodbye()
            else:
                await caller.ask("health")
        with suppress(OSError):  # its server has gone
            os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["refused", "unread", "of one connection too many"])
async def test_a_socket_that_lingers_stops_nobody(way: str, tmp_path: Path) -> None:
    """Whether it was taken and refused, or still waited in the connection when that ended."""
    async with open_daemon(tmp_path, max_per_user=4) as daemon:
        bystander = await daemon.call_as(STRANGER)
        with lingering() as fd:
            if way == "of one connection too many":
                for _ in range(4):
                    await daemon.call_as(OWNER)
            caller = daemon.connect(OWNER)
            if way == "refused":
                await caller.ask("hello", version=1)
            elif way == "unread":
                await caller.send(b"\xc1")
            with suppress(OSError):
                await caller.send(encode(Request(2, "arena.put", PUT)), [fd])
            os.close(fd)
            began = time.monotonic()
            await caller.receive()
            for _ in range(20):
                await bystander.ask("health")
            assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_what_was_given_to_somebody_who_has_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsd then closes it last: of a removed arena, GPU memory.  It was closed on the event loop."""
    async with open_daemon(tmp_path) as daemon:
        bystander, caller = await daemon.call_as(STRANGER), await daemon.call_as(OWNER)
        with lingering() as fd:
            found = daemon.fakes.arenas.find_id(1)

            async def layout(arena_id: int, process: ProcessId) -> tuple[Arena, int]:
                caller.close()
                return found, fd

            monkeypatch.setattr(daemon.fakes.arenas, "layout", layout)
            began = time.monotonic()
            await caller.send(encode(Request(2, "arena.layout", {"id": 1})))
            await daemon.until(1)
            for _ in range(20):
                await bystander.ask("health")
            assert time.monotonic() - began < 5
