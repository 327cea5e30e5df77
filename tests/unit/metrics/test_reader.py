"""The connection of a reader of the metrics: which descriptors count together, and where they are closed."""

import os
import socket
from array import array
from collections.abc import Collection

import pytest
import trio
import trio.testing

from mpsd.fairness.uid_ranges import NO_RANGES, parse
from mpsd.host.arrivals import is_empty
from mpsd.host.descriptors import Closings
from mpsd.metrics.reader import UnixReader

OWNER, INSIDE = 100_000, 100_777


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a socket of another user")
async def test_the_uids_of_a_range_are_one_user() -> None:
    """A user with a range of /etc/subuid could keep as many closings under way as the range has uids."""
    os.seteuid(INSIDE)
    try:
        ours, theirs = socket.socketpair()
    finally:
        os.seteuid(0)
    ours.setblocking(False)
    closings, got = Closings(most=1), list[bytes]()
    closings._under_way[OWNER] = 1
    reader = UnixReader(ours, closings, parse(f"eve:{OWNER}:65536\n"))

    async def read() -> None:
        got.append(await reader.receive_some())

    with theirs, trio.fail_after(20):
        theirs.send(b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not got, "the descriptors of the range's owner count too"
            closings._end(OWNER)
        await reader.aclose()
    assert got == [b"x"]


class NotedClosings(Closings):
    """Closings that count the descriptors given to them."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    async def close(self, share: int, fds: Collection[int]) -> None:
        self.given += len(fds)
        await super().close(share, fds)


def send_urgently(peer: socket.socket) -> None:
    """Send a byte out of band, with a descriptor."""
    with open(os.devnull) as file:
        rights = array("i", [file.fileno()])
        try:
            peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_OOB)
        except OSError as exc:
            pytest.skip(f"this kernel has no MSG_OOB for Unix sockets: {exc.strerror}")  # before Linux 5.15


async def test_a_descriptor_out_of_band_is_closed_in_a_thread_too() -> None:
    """The kernel dropped it as mpsd read on: on the event loop, for as long as a lingering socket of the sender's lasts."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    closings = NotedClosings()
    reader = UnixReader(ours, closings, NO_RANGES)
    with theirs, trio.fail_after(20):
        send_urgently(theirs)
        theirs.send(b"GET")
        data = b""
        while len(data) < 4:
            data += await reader.receive_some()
        await reader.aclose()
    assert (data, closings.given) == (b"xGET", 1)


async def test_a_descriptor_out_of_band_that_waits_is_seen_before_the_close() -> None:
    """The connection counted as empty, and was closed on the event loop together with the descriptor."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = UnixReader(ours, Closings(), NO_RANGES)
    with theirs:
        send_urgently(theirs)
    assert not is_empty(ours)
    await reader.aclose()
