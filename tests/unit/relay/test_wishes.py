"""Domains that an operator requested for a client's next start."""

import os
import socket

import trio

from mpsd.domains.rules.placement import PlacementRequest
from mpsd.host.client_facts import NOTHING
from mpsd.host.inspector_messages import StartFacts
from mpsd.host.processes import process_id
from mpsd.model.lease import Grant
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.forwarding import Forwarding
from tests.unit.relay.test_conversation import HopefulPool, NobodyApart, OpenAdmission

LEASE = Grant("default", lease_id=7)


class FullPool(HopefulPool):
    """Has no place at once, and one later."""

    asked: list[PlacementRequest]

    def place_now(self, ask, process):
        self.asked.append(ask)

    async def place(self, ask, process):
        self.asked.append(ask)
        return self.domain

    def home_of(self, process):
        return None


class Leases(OpenAdmission):
    def grant_of(self, process):
        return LEASE

    async def admit(self, process, credentials, told):
        return LEASE


class Reader:
    async def read(self, process: ProcessId) -> StartFacts:
        return NOTHING


async def test_a_requested_domain_is_remembered_while_its_client_waits_for_a_place() -> None:
    """It was forgotten when no place was free at once: the client went to any domain."""
    pool, process = FullPool(), process_id(os.getpid())
    pool.asked = []
    assert process is not None
    assignment = Assignment(pool, Leases(), NobodyApart(), is_per_gpu=False, reader=Reader())
    assignment.may_place.set()
    assignment.wish(process, 0, "d3")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, trio.fail_after(10):
        caller = ClientConnection(1, "control", ours, Credentials(process.pid, 0, 0), process, 0.0, Forwarding(ours, False))
        assert await assignment.find_place(caller) == (pool.domain, LEASE)
        await assignment.find_place(caller)
    assert [ask.wish for ask in pool.asked] == ["d3", "d3", "", ""], "it is of one start only"
