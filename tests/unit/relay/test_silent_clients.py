"""A client that sent nothing for long makes room for others, and loses nothing by it."""

import math
import os
import socket
from types import SimpleNamespace

import trio
import trio.testing

from mpsd.host.polling import is_readable
from tests.descriptors import copies
from tests.unit.relay.test_forwarding import PATIENCE, pair, well
from tests.unit.relay.test_own_trouble import one_caller

ATTEMPTS = 30  # trio runs the two tasks in either order


async def set_aside_as_it_speaks() -> tuple[bool, bool]:
    """Return whether it was set aside, and whether its message is still in its queue."""
    (client, ours), (link_domain, domain), (signal, signalled) = pair(), pair(), pair()
    ends = [client, ours, link_domain, domain, signal, signalled, queue := ours.dup()]
    memory = os.memfd_create("of this test", os.MFD_CLOEXEC)
    relay, caller = one_caller(ours, None)
    relay.conversations.settings = SimpleNamespace(silent_seconds=1.0)  # type: ignore[assignment]
    caller.link.greeted_at = -math.inf

    async def make_room() -> None:
        await trio.lowlevel.wait_readable(signalled)
        relay._set_silent_aside()

    async def speak() -> None:
        domain.send(b"greeting")
        await trio.lowlevel.wait_readable(client)
        client.recv(64)
        await trio.testing.wait_all_tasks_blocked()
        socket.send_fds(client, [b"its answer"], [memory])
        signal.send(b"at the same moment")
        await trio.testing.wait_all_tasks_blocked()
        domain.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_room)
        nursery.start_soon(speak)
        await relay._converse(caller, caller.link.run(link_domain, PATIENCE, well))
    with trio.fail_after(5):  # they are closed in a thread
        while copies(memory):  # noqa: ASYNC110
            await trio.sleep(0.01)
    os.close(memory)
    found = bool(len(relay.backlog)), is_readable(queue)
    for end in (*ends, *relay.backlog._ends):
        end.close()
    return found


async def test_a_client_that_speaks_as_it_is_set_aside_loses_no_message() -> None:
    """The domain had got the message, which the next domain never would; mpsd never closed the descriptors in it."""
    for _ in range(ATTEMPTS):
        is_aside, is_queued = await set_aside_as_it_speaks()
        assert is_queued or not is_aside
