"""Closing what other processes sent: one user's slow descriptors keep nobody else waiting, and no more than a few are taken."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.host import descriptors
from mpsd.host.descriptors import Closings, close_all, close_apart, close_beside, is_file, is_prompt
from tests.lingering import lingering
from tests.unit.api.file_server import open_as, serve

SLOW, QUICK = 1000, 1001


async def test_a_user_whose_descriptors_close_slowly_brings_no_more() -> None:
    closings = Closings(most=1)
    with lingering() as fd:
        closings.begin(SLOW, [fd])
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.2) as waiting:
            await closings.room(SLOW)
        assert waiting.cancelled_caught
        await closings.room(QUICK)
    with trio.fail_after(30):
        await closings.room(SLOW)


async def test_each_file_of_a_message_counts() -> None:
    """8 messages of 253 files each took 2,024 threads, at each of four sockets."""
    closings = Closings(most=3)
    with tempfile.TemporaryFile(dir=os.path.dirname(__file__)) as file:
        closings.begin(SLOW, [os.dup(file.fileno()) for _ in range(3)])
    with trio.move_on_after(0) as waiting:
        await closings.room(SLOW)
    assert waiting.cancelled_caught
    with trio.fail_after(30):
        await closings.room(SLOW)


async def test_a_user_whose_requests_hold_many_brings_no_more() -> None:
    """Requests that wait for one arena kept what they had brought: 128 each, in 64 connections of each user."""
    closings = Closings(most_held=200)
    with closings.holding(SLOW, 128):
        await closings.room(SLOW)
        with closings.holding(SLOW, 128):
            with trio.move_on_after(0) as waiting:
                await closings.room(SLOW)
            assert waiting.cancelled_caught
            await closings.room(QUICK)
        await closings.room(SLOW)
    assert not closings._held


async def test_without_a_thread_they_are_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed open for ever; and close_apart() raised RuntimeError."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)
    (ours, theirs), (ours_too, theirs_too), closed = socket.socketpair(), socket.socketpair(), trio.Event()
    with theirs, theirs_too, trio.fail_after(30):
        close_beside([ours.detach()], SLOW, closed.set)
        await close_apart(ours_too.close)
        await closed.wait()
        assert (theirs.recv(1), theirs_too.recv(1)) == (b"", b"")


async def test_all_are_closed_before_the_end_is_told() -> None:
    closed = trio.Event()
    left, right = socket.socketpair()
    with tempfile.TemporaryFile() as file:
        fds = [os.dup(file.fileno()), left.detach(), right.detach()]
    close_beside(fds, SLOW, closed.set)
    with trio.fail_after(30):
        await closed.wait()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


async def test_no_descriptors_are_closed_at_once() -> None:
    closed = trio.Event()
    close_beside([], SLOW, closed.set)
    with trio.fail_after(30):
        await closed.wait()


def test_only_files_that_may_have_a_server_count_as_files() -> None:
    with open(sys.executable, "rb") as file, open("/dev/null") as device:  # a file in tmpfs is a memory file
        assert is_file(file.fileno())
        assert not is_file(device.fileno())
    memory = os.memfd_create("memory")
    assert not is_file(memory)
    os.close(memory)
    with socket.socket() as sock:
        assert not is_file(sock.fileno())


@pytest.mark.root
def test_a_file_that_is_for_its_user_alone_counts_as_a_file(tmp_path: Path) -> None:
    """The kernel told mpsd no type, and mpsd took it for something that its close does not wait for."""
    with ExitStack() as mounted:
        try:
            server = mounted.enter_context(serve(tmp_path, uid=65534, is_for_all=False))
        except OSError as exc:
            pytest.skip(f"nothing can be mounted here: {exc}")
        fd = open_as(tmp_path, 65534, os.O_RDONLY)
        server.is_silent = True
        assert is_file(fd)
        assert not is_prompt(fd)
        assert not server.asked
        mounted.close()
        close_all([fd])  # the server has gone


@pytest.mark.parametrize("is_file_servers", [True, False], ids=["directory", "memory"])
async def test_only_what_a_file_server_can_keep_open_is_closed_in_its_users_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_file_servers: bool
) -> None:
    """The driver may close a device slowly too: after a kill, the next mpsd aborted file servers of that user for it."""
    named: list[int] = []

    @contextmanager
    def closing(share: int) -> Iterator[None]:
        named.append(share)
        yield

    monkeypatch.setattr(descriptors, "closing", closing)
    fd = os.open(tmp_path, os.O_RDONLY) if is_file_servers else os.memfd_create("any")
    ended = trio.Event()
    descriptors.close_beside([fd], 1000, ended.set)
    with trio.fail_after(20):
        await ended.wait()
    assert named == [1000] * is_file_servers
