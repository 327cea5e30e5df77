"""How long a client that sends without a pause may have its domain."""

from contextlib import suppress
from functools import partial

import pytest
import trio

from mpsd.relay import message
from mpsd.relay.forwarding import Forwarding, LinkSide
from tests.unit.relay.test_forwarding import PATIENCE, pair


async def ask(seconds):
    """The domain serves nobody else."""
    await trio.sleep(seconds)
    return False


@pytest.mark.parametrize("asks_seconds", [0, 0.05])
async def test_a_steady_talker_keeps_no_domain(autojump_clock, asks_seconds):
    """Each message began the wait for the domain anew, or passed for its answer: the client kept its domain for ever."""
    (client, link_client), (link_domain, domain) = pair(), pair()

    async def talk():
        with suppress(BlockingIOError):
            while True:
                client.send(b"junk")
                await message.receive(domain)
                await trio.sleep(0.01)

    link = Forwarding(link_client, may_impersonate=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        with trio.fail_after(PATIENCE):
            assert await link.run(link_domain, PATIENCE, partial(ask, asks_seconds)) is LinkSide.SLOW_CLIENT
        nursery.cancel_scope.cancel()
    for end in (client, link_client, link_domain, domain):
        end.close()


async def test_a_domain_that_answers_a_steady_talker_is_not_slow(autojump_clock):
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, may_impersonate=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, link_domain, PATIENCE, partial(ask, 0))
        for _ in range(100):
            client.send(b"question")
            await message.receive(domain)
            await trio.sleep(0.01)
            domain.send(b"answer")
            await message.receive(client)
        assert link._end is None
        nursery.cancel_scope.cancel()
    for end in (client, link_client, link_domain, domain):
        end.close()
