"""Waiting for the end of a process, where a socket had the pidfd's number before."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing

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
