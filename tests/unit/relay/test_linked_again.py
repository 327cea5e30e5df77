"""A connection that has to make way for others, and is linked to a domain again."""

import socket
from types import SimpleNamespace

import pytest
import trio

from mpsd.host.client_facts import NOTHING
from mpsd.model.lease import Grant
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay import message
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.forwarding import Forwarding
from tests.running import running
from tests.unit.relay.test_conversation import HopefulPool, NobodyApart, OpenAdmission
from tests.unit.relay.test_overdue import OTHER, OWN, PATIENCE, TIME, VendorDaemon, waiter


class KnownClients(OpenAdmission):
    def grant_of(self, process):
        return Grant("everybody")

    def identity_of(self, process):
        return None


class NoFacts:
    async def read(self, process):
        return NOTHING


class Arrivals(NobodyApart):
    def __init__(self):
        self.seen = []

    def arrived(self, process, domain, is_again=False):
        self.seen.append(is_again)


async def test_a_client_that_a_healthy_daemon_leaves_without_an_answer_makes_way_and_is_linked_again(autojump_clock, tmp_path):
    """It kept the others out for ever.  Its own connection stays open: closed, it would run without MPS.

    The second link is no second connection: with that one a client asks for a context, and has opened its own VA space."""
    pool, held, arrivals = HopefulPool(), set(), Arrivals()
    domain = pool.domain
    domain.control = VendorDaemon(str(tmp_path / "control"))
    keeper = SimpleNamespace(hold=lambda name, end: held.add(name), drop=held.discard)
    settings = RelaySettings(max_connections=1, turn_seconds=PATIENCE, silent_seconds=1, may_impersonate=False)
    assignment = Assignment(pool, KnownClients(), arrivals, is_per_gpu=False, reader=NoFacts())
    assignment.may_place.set()
    shared = Conversations(pool, keeper, None, settings, assignment, refusals=None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        for end in (ours, theirs, listener):
            end.setblocking(False)
        listener.bind(domain.control.path)
        listener.listen()
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        caller = ClientConnection(1, "control", ours, Credentials(1, OWN, OWN), ProcessId(1, 1), 0.0, link)
        theirs.send(b"hello")
        async with running(shared.run, caller):
            first = await accepted(listener)
            assert (await message.receive(first)).data == b"hello"
            began = trio.current_time()
            async with domain.guard.window(waiter(OTHER, object()), domain.control):
                assert trio.current_time() - began == pytest.approx(TIME, abs=0.1)
                with trio.fail_after(1):
                    assert await message.receive(first) is None
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)
            assert not shared.offences.of(caller.process, OWN), "a server may have had to start"
            with trio.fail_after(10):
                again = await accepted(listener)
                assert (await message.receive(again)).data == b"hello"
                again.send(b"answer")
                assert (await message.receive(theirs)).data == b"answer"
        for end in (first, again):
            end.close()
    assert arrivals.seen == [False, True]


async def accepted(listener):
    await trio.lowlevel.wait_readable(listener)
    end, _ = listener.accept()
    end.setblocking(False)
    return end
