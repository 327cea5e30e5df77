"""Connections that mpsd keeps open without reading from them: it notices their end."""

import errno
import math
import select
import socket
from collections.abc import Callable

import pytest
import trio
import trio.testing

from mpsd.relay import client_connection
from mpsd.relay.client_connection import until_ended
from tests.unit.relay.test_forwarding import pair

WAYS = pytest.mark.parametrize(
    "end", [pytest.param(socket.socket.close, id="close"), pytest.param(lambda it: it.shutdown(socket.SHUT_WR), id="shutdown")]
)


@WAYS
async def test_the_end_of_one_with_unread_messages_is_noticed_without_a_look_each_second(
    end: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of them, mpsd did little else."""
    monkeypatch.setattr(client_connection, "_LOOK_SECONDS", math.inf)
    ours, theirs = pair()
    with ours, theirs, trio.fail_after(10):
        theirs.send(b"hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_ended, ours)
            await trio.testing.wait_all_tasks_blocked()
            end(theirs)


@WAYS
async def test_it_is_noticed_also_where_mpsd_can_watch_nothing_more(
    end: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(select, "epoll", refuse)
    ours, theirs = pair()
    with ours, theirs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_ended, ours)
            await trio.sleep(5.5)
            end(theirs)
