"""Waiting for the end of a process, or for an answer, where a socket had the number of the descriptor before."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from mpsd.host import polling
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.polling import until_ended


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


async def leave_in_epoll() -> tuple[socket.socket, socket.socket, int]:
    """Wait for a socket, and close it, while it stays open under another number.  Return that, its peer, and its number."""
    ours, theirs = socket.socketpair()
    with trio.move_on_after(0.01):
        await trio.lowlevel.wait_readable(ours)
    kept, number = ours.dup(), ours.fileno()
    ours.close()
    return kept, theirs, number


async def test_a_process_lives_though_another_sockets_hang_up_comes_under_its_number(child: "subprocess.Popen[bytes]") -> None:
    """mpsd took running clients and vendor daemons for ended ones: it closed the connections of the former, which then ran
    without MPS."""
    kept, theirs, number = await leave_in_epoll()
    woken: list[str] = []
    with kept:
        pidfd = os.pidfd_open(child.pid)
        assert pidfd == number, "the lowest free one"

        async def wait() -> None:
            await until_ended(pidfd)
            woken.append("ended")

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                theirs.close()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not woken
                child.send_signal(signal.SIGKILL)
        finally:
            os.close(pidfd)
    assert woken == ["ended"]


async def test_the_end_of_a_process_that_cannot_be_watched_is_noticed(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error, at fs.epoll.max_user_watches, ended mpsd: root of a container can reach that limit for root."""

    async def wait_readable(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    monkeypatch.setattr(polling, "_LOOK_SECONDS", 0.01)
    pidfd = os.pidfd_open(child.pid)
    try:
        with trio.move_on_after(0.1) as lives:
            await until_ended(pidfd)
        assert lives.cancelled_caught
        child.kill()
        with trio.fail_after(10):
            await until_ended(pidfd)
    finally:
        os.close(pidfd)


async def test_the_loop_waits_for_no_answer_though_a_hang_up_comes_under_its_number() -> None:
    """mpsd then read the answer at once, and stood still until the inspector gave it: for a second, if the process keeps it."""
    inspector = Inspector(deadline_seconds=1.0)
    inspector.start()
    kept, theirs, number = await leave_in_epoll()
    os.kill(inspector.pid, signal.SIGSTOP)
    release = threading.Timer(5.0, os.kill, (inspector.pid, signal.SIGKILL))
    release.start()

    async def ask() -> None:
        with pytest.raises(Unreadable):
            await inspector.facts(os.getpid(), [])

    try:
        with kept:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                assert os.readlink(f"/proc/self/fd/{number}").startswith("socket:"), "the answer is to come there"
                theirs.close()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert release.is_alive(), "else the loop has stood still until then"
    finally:
        release.cancel()
        inspector.close()
