"""mpsd keeps few descriptors of one user's messages open, however many domains have no room for them, and none afterwards."""

import os
import socket
from contextlib import suppress

import pytest
import trio.testing

from mpsd.host.descriptors import KERNELS_MOST, MOST_HELD, Closings
from mpsd.relay.forwarding import Forwarding
from mpsd.relay.message import receive
from tests.descriptors import copies
from tests.running import running
from tests.unit.relay.test_forwarding import pair, well

LINKS = 8


@pytest.mark.root  # the kernel lets an ordinary user have fewer descriptors in flight (unix(7), ETOOMANYREFS)
@pytest.mark.parametrize("user", [1000, 0])
async def test_messages_that_wait_for_their_domains_hold_few_descriptors(user: int) -> None:
    """Each of a user's connections held 253: 180 of them were all that mpsd may open.  Root may be that of a container."""
    closings, memory = Closings(), os.memfd_create("of this test", os.MFD_CLOEXEC)
    links = [(pair(), pair()) for _ in range(LINKS)]
    async with trio.open_nursery() as nursery:
        for (_, ours), (link_domain, _) in links:
            link_domain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least
            link = Forwarding(ours, False, closings=closings, share=user)
            nursery.start_soon(link.run, link_domain, 60.0, well)
        for _ in range(64):
            for (client, _), _ in links:
                with suppress(BlockingIOError):
                    socket.send_fds(client, [bytes(64)], [memory] * KERNELS_MOST)
            await trio.testing.wait_all_tasks_blocked()
        held = copies(memory)
        nursery.cancel_scope.cancel()
    assert 0 < held < MOST_HELD + KERNELS_MOST
    for ends in links:
        for end in (*ends[0], *ends[1]):
            end.close()
    os.close(memory)


async def test_messages_that_were_passed_on_hold_none() -> None:
    """Each of a user's 2,508 connections held 8 for a repetition, which counted nowhere: all that mpsd may open."""
    memory, ends = os.memfd_create("of this test", os.MFD_CLOEXEC), (pair(), pair())
    (client, ours), (link_domain, domain) = ends
    async with running(Forwarding(ours, False).run, link_domain, 60.0, well):
        for _ in range(4):
            socket.send_fds(client, [b"x"], [memory, memory])
            came = await receive(domain)
            assert came is not None
            came.close()
        with trio.fail_after(5):  # they are closed in threads
            while copies(memory):  # noqa: ASYNC110
                await trio.sleep(0.01)
    for end in (*ends[0], *ends[1]):
        end.close()
    os.close(memory)
