"""What mpsd tells a running sentinel."""

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.sentinel.messages import UNLESS_CONTAINED, VERSION, SentinelKind, SentinelOp, pack_request
from mpsd.sentinel.watcher import Watcher


@pytest.fixture
def program() -> Iterator[tuple[Watcher, socket.socket]]:
    """Mpsd's side of a connection, and the sentinel's end of it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        yield Watcher("GPU-0", here, lambda watcher, report: None, lambda watcher: None), there


@pytest.fixture
def client() -> Iterator[tuple[subprocess.Popen[bytes], ProcessId]]:
    with subprocess.Popen(["sleep", "60"]) as popen:
        process = processes.process_id(popen.pid)
        assert process
        yield popen, process
        popen.kill()


async def test_a_client_is_named_once(
    program: tuple[Watcher, socket.socket], client: tuple[subprocess.Popen[bytes], ProcessId]
) -> None:
    watcher, end = program
    assert await watcher.add(client[1])
    assert not await watcher.add(client[1])
    data, descriptors, _, _ = socket.recv_fds(end, 64, 4, socket.MSG_DONTWAIT)
    os.close(descriptors[0])
    assert data == pack_request(SentinelOp.ADD, client[1].pid)


@pytest.mark.parametrize("is_reaped", [True, False])
async def test_a_client_that_has_ended_is_not_named(
    program: tuple[Watcher, socket.socket], client: tuple[subprocess.Popen[bytes], ProcessId], is_reaped: bool
) -> None:
    """The domain lists it a little longer, and naming it again and again kept the event loop busy for ever."""
    watcher, end = program
    popen, process = client
    assert await watcher.add(process)
    popen.kill()
    os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it was killed
    if is_reaped:
        popen.wait()
    watcher.forget_gone()
    assert not await watcher.add(process)
    _, descriptors, _, _ = socket.recv_fds(end, 64, 4, socket.MSG_DONTWAIT)
    os.close(descriptors[0])
    with pytest.raises(BlockingIOError):
        end.recv(64, socket.MSG_DONTWAIT)


async def test_a_client_that_was_unread_for_a_moment_is_named_later(
    program: tuple[Watcher, socket.socket],
    client: tuple[subprocess.Popen[bytes], ProcessId],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any user can hold its /proc at its first connection: after an exception the sentinel then did not hold its memory."""
    watcher, end = program
    opened = [OSError(errno.ETIMEDOUT, "was not read"), OSError(errno.ETIMEDOUT, "was not read"), os.pidfd_open(client[1].pid)]

    def open_pidfd(process: ProcessId) -> int:
        if isinstance(found := opened.pop(0), OSError):
            raise found
        return found

    monkeypatch.setattr("mpsd.sentinel.watcher.processes.open_pidfd", open_pidfd)
    with capture_logs() as logs:
        assert [await watcher.add(client[1]) for _ in range(3)] == [False, False, True]
    assert [each["event"] for each in logs] == ["sentinel.not_told"]
    assert watcher.added == {client[1]}
    _, descriptors, _, _ = socket.recv_fds(end, 64, 4, socket.MSG_DONTWAIT)
    os.close(descriptors[0])


REPORT = struct.Struct("=IIIiQQIIIIQ")


def report(kind: SentinelKind) -> bytes:
    return REPORT.pack(VERSION, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0)


async def test_one_with_an_exception_to_contain_is_left(autojump_clock: trio.testing.MockClock) -> None:
    """The exception can come just before the request, and its report just after."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    heard: list[SentinelKind] = []
    watcher = Watcher("GPU-0", here, lambda watcher, report: heard.append(report.kind), lambda watcher: None)
    with there, trio.fail_after(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            there.send(report(SentinelKind.FAULT))
            await watcher.end(unless_contained=True)
            assert heard == [SentinelKind.FAULT]
            assert there.recv(64) == pack_request(SentinelOp.END, UNLESS_CONTAINED)
            assert not watcher.gone.is_set()
            nursery.cancel_scope.cancel()


async def test_what_it_has_reported_is_known_as_soon_as_its_pid(program: tuple[Watcher, socket.socket]) -> None:
    """An adopted domain is contained, or takes clients, by what its sentinel reports when mpsd connects."""
    watcher, end = program
    for kind in (SentinelKind.STARTED, SentinelKind.ARMED, SentinelKind.FAULT):
        end.send(report(kind))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await watcher.known.wait()
        assert watcher.decided.is_set()
        nursery.cancel_scope.cancel()
