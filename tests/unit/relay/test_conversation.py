"""A conversation with a domain whose vendor daemon has died before anybody else knows."""

import socket

import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.model import Credentials, DomainState
from mpsd.relay.conversation import Caller, Conversations, RelaySettings
from mpsd.relay.link import Link
from mpsd.relay.progress import Track


class DeadControl:
    """Of a vendor daemon that has died: nobody listens at its path."""

    def socket_path(self, name):
        return f"/nonexistent/{name}"

    def is_alive(self):
        return False


class HopefulPool:
    """Places everybody in the one domain until somebody tells it of the death."""

    gpus = ()

    def __init__(self):
        self.domain = Domain("default", 1, (), DeadControl(), 48, state=DomainState.READY)
        self.is_told = False

    def place_now(self, ask, process):
        return None if self.is_told else self.domain

    async def place(self, ask, process):
        await trio.sleep_forever()


async def test_whoever_finds_a_daemon_dead_lets_the_others_learn_of_it(autojump_clock):
    """Placed again and again without a pause it would keep mpsd from ever hearing of the death."""
    pool = HopefulPool()
    settings = RelaySettings(max_connections=1, turn_seconds=1, silent_seconds=1, may_impersonate=False, is_per_gpu=False)
    shared = Conversations(pool, keeper=None, progress=None, settings=settings)
    shared.may_place.set()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        caller = Caller(1, "control", ours, Credentials(1, 0, 0), None, 0.0, Link(ours, False, track=Track()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shared.run, caller)
            await trio.testing.wait_all_tasks_blocked()
            pool.is_told = True
            await trio.sleep(1)
            assert not pool.domain.handshakes
            nursery.cancel_scope.cancel()
