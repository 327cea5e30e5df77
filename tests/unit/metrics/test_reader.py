"""The connection of a reader of the metrics: whose descriptors count together."""

import os
import socket

import pytest
import trio
import trio.testing

from mpsd.fairness.uid_ranges import parse
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
            closings._end(OWNER, lambda: None)
        await reader.aclose()
    assert got == [b"x"]
