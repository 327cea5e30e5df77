"""mpsd keeps few descriptors of one user's messages open, however many domains have no room for them."""

import os
import socket
from contextlib import suppress

import pytest
import trio.testing

from mpsd.host.descriptors import KERNELS_MOST, MOST_HELD, Closings
from mpsd.relay.forwarding import Forwarding
from tests.descriptors import opened
from tests.unit.relay.test_forwarding import pair, well

LINKS = 8


@pytest.mark.root  # the kernel lets an ordinary user have fewer descriptors in flight (unix(7), ETOOMANYREFS)
@pytest.mark.parametrize("user", [1000, 0])
async def test_messages_that_wait_for_their_domains_hold_few_descriptors(user: int) -> None:
    """Each of a user's connections held 253: 180 of them were all that mpsd may open.  Root may be that of a container."""
    closings, memory = Closings(), os.memfd_create("of this test", os.MFD_CLOEXEC)
    file = os.readlink(f"/proc/self/fd/{memory}")
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
        held = sum(each.endswith(f" {file}") for each in opened()) - 1
        nursery.cancel_scope.cancel()
    assert 0 < held < MOST_HELD + KERNELS_MOST
    for ends in links:
        for end in (*ends[0], *ends[1]):
            end.close()
    os.close(memory)
