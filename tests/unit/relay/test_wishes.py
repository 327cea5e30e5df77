"""What a client asks for that waits for a place: the domain that an operator requested, and its key."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
import trio.testing

from mpsd.domains.rules.placement import PlacementRequest
from mpsd.host.client_facts import NOTHING
from mpsd.host.inspector_answers import Unreadable
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


class Convicted(NobodyApart):
    """Keeps a client apart from the time on at which it waits for a place."""

    def __init__(self, pool: FullPool) -> None:
        self.pool = pool

    def key_of(self, process: ProcessId, is_grouped: bool = False) -> str:
        return "quarantine:it" if len(self.pool.asked) > 1 else ""


@contextmanager
def waiting(separation: Callable[[FullPool], NobodyApart]) -> Iterator[tuple[FullPool, Assignment, ClientConnection]]:
    """A client that an operator wants in d3, where no place is free at once."""
    pool, process = FullPool(), process_id(os.getpid())
    pool.asked = []
    assert process is not None
    assignment = Assignment(pool, Leases(), separation(pool), is_per_gpu=False, reader=Reader())
    assignment.may_place.set()
    assignment.wish(process, 0, "d3")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        facts = (ours, Credentials(process.pid, 0, 0), process, 0.0, Forwarding(ours, False))
        yield pool, assignment, ClientConnection(1, "control", *facts)


async def test_a_client_that_is_convicted_while_it_waits_goes_to_a_domain_apart() -> None:
    """A user in quarantine ended the domain of all others again with each client that had waited for a place there."""
    with waiting(Convicted) as (pool, assignment, caller), trio.fail_after(10):
        assert await assignment.find_place(caller) == (pool.domain, LEASE)
    assert [(ask.key, ask.wish) for ask in pool.asked] == [("", "d3"), ("", "d3"), ("quarantine:it", "d3")]


async def test_a_requested_domain_is_remembered_while_its_client_waits_for_a_place() -> None:
    """It was forgotten when no place was free at once: the client went to any domain."""
    with waiting(lambda pool: NobodyApart()) as (pool, assignment, caller), trio.fail_after(10):
        assert await assignment.find_place(caller) == (pool.domain, LEASE)
        await assignment.find_place(caller)
        caller.process = process_id(os.getppid())
        await assignment.find_place(caller)
    assert [ask.wish for ask in pool.asked] == ["d3", "d3", "d3", "d3", "", ""], "it is of one start only"


async def test_a_client_with_a_grant_waits_too_until_a_restarted_mpsd_knows_its_domain() -> None:
    """It left its own domain, which had not answered yet, and made its next context in another, beside clients of no lease."""
    with waiting(lambda pool: NobodyApart()) as (pool, assignment, caller), trio.fail_after(10):
        assignment.may_place = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(assignment.find_place, caller)
            await trio.testing.wait_all_tasks_blocked()
            assert not pool.asked
            assignment.may_place.set()
    assert [ask.wish for ask in pool.asked] == ["d3"]


class Forgetful(Leases):
    """Does not know who a client is, until it is read again."""

    def __init__(self) -> None:
        self.asked = 0

    def grant_of(self, process):
        return LEASE if self.asked > 1 else None

    async def admit(self, process, credentials, told):
        self.asked += 1
        if self.asked == 1:
            raise Unreadable("its cgroups cannot be read: Connection timed out")
        return LEASE


async def test_a_client_that_cannot_be_read_as_it_is_admitted_is_read_again(autojump_clock: trio.testing.MockClock) -> None:
    """One wait of the kernel's held it for ever, as if its cgroups were refused."""
    with waiting(lambda pool: NobodyApart()) as (pool, assignment, caller), trio.fail_after(10):
        assignment.admission = admission = Forgetful()
        assert await assignment.find_place(caller) == (pool.domain, LEASE)
    assert admission.asked == 2
