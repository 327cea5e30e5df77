"""A conversation with a domain after the unnoticed death of its vendor daemon."""

import socket
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.handshake_gate import Entrant
from mpsd.domains.limit_guard import ConnectingClient
from mpsd.domains.placement_waits import PlacementWaits
from mpsd.domains.rules.vendor_limits import unlimited
from mpsd.model.domain import Defaults, DomainState
from mpsd.model.lease import Grant
from mpsd.model.process import Credentials, ProcessId
from mpsd.notify import Signal
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.forwarding import Forwarding
from mpsd.relay.offences import Offences
from mpsd.relay.progress import Track
from tests.running import running


class DeadControl:
    """The socket of a dead vendor daemon: no process listens at its path."""

    def socket_path(self, name):
        return f"/nonexistent/{name}"

    def is_alive(self):
        return False


class NobodyApart:
    """Never keeps a client apart, or makes it wait, because of faults."""

    def key_of(self, process: ProcessId, is_grouped: bool = False) -> str:
        return ""

    def pause_of(self, process: ProcessId) -> float:
        return 0.0

    def arrived(self, process: ProcessId, domain: Domain, is_again: bool = False) -> None: ...

    def served(self, process: ProcessId, domain: Domain) -> None: ...

    def hung_up(self, process: ProcessId) -> None: ...


class OpenAdmission:
    """Admits all clients, without limits."""

    def grant_of(self, process):
        return None

    async def admit(self, process, credentials, told):
        return Grant("everybody")


class HopefulPool:
    """Places all clients in the one domain until the test reports its death."""

    gpus = ()
    is_stopping = False
    defaults = Defaults()
    settings = SimpleNamespace(is_guarded=False, is_multiuser=True)

    def __init__(self):
        self.domain = Domain("default", 1, (), DeadControl(), 48, state=DomainState.READY)
        self.is_told = False
        self.waits = PlacementWaits()
        self.stopping = trio.Event()
        self.client_adopted = Signal()

    def take_over(self, domain, process, uid):
        domain.join(process, uid)
        domain.attach(process)
        self.client_adopted.emit(process, domain)

    def attach(self, domain, process, uid):
        domain.attach(process)

    def place_now(self, ask, process):
        self.domain.join(process)
        return None if self.is_told else self.domain

    def home_of(self, process):
        return None

    async def place(self, ask, process):
        return self.place_now(ask, process) or await trio.sleep_forever()

    async def changed(self):
        await trio.sleep_forever()


async def test_whoever_finds_a_daemon_dead_lets_the_others_learn_of_it(autojump_clock):
    """Placed again and again without a pause it would keep mpsd from ever hearing of the death."""
    pool = HopefulPool()
    settings = RelaySettings(max_connections=1, turn_seconds=1, silent_seconds=1, may_impersonate=False)
    assignment = Assignment(pool, OpenAdmission(), NobodyApart(), is_per_gpu=False, reader=None)
    assignment.may_place.set()
    shared = Conversations(pool, None, None, settings, assignment, refusals=None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        caller = ClientConnection(1, "control", ours, Credentials(1, 0, 0), None, 0.0, Forwarding(ours, False, track=Track()))
        async with running(shared.run, caller):
            await trio.testing.wait_all_tasks_blocked()
            pool.is_told = True
            await trio.sleep(1)
            assert not pool.domain.handshakes


async def test_a_domain_is_not_empty_while_a_client_waits_for_its_sentinel(autojump_clock):
    """A client with another key got the domain then, and the one that had waited had its context there too."""
    domain, process = HopefulPool().domain, ProcessId(1, 1)
    domain.members[process] = domain.asked_at = 0.0
    await trio.sleep(60.0)
    seen: list[int] = []

    async def find_place(caller: object) -> tuple[Domain, Grant]:
        return domain, Grant("everybody")

    async def prepare(domain: Domain, uid: int) -> None:
        seen.append(domain.occupancy)
        await trio.sleep_forever()

    assignment = SimpleNamespace(find_place=find_place, limits=lambda *_: None)
    shared = Conversations(None, None, None, None, assignment, None, prepare=prepare)
    domain.asked_at = trio.current_time()
    async with running(shared._once, SimpleNamespace(process=process, credentials=Credentials(1, 0, 0))):
        await trio.testing.wait_all_tasks_blocked()
    assert seen == [1]
    domain.forget_absent()
    assert domain.occupancy == 1, "for as long as it may connect again"
    await trio.sleep(60.0)
    domain.asked_at = trio.current_time()
    domain.forget_absent()
    assert domain.occupancy == 0


async def test_a_process_that_has_left_the_domain_with_another_connection_gets_no_channel_there(autojump_clock):
    """It left while the domain was suspected for two seconds.  The first one went on there: its channel did not count."""
    domain, process, spoken = HopefulPool().domain, ProcessId(1, 1), []

    class Heard(Conversations):
        async def _speak(self, caller, domain, right):
            spoken.append(caller)

    domain.join(process, 1)
    settings = RelaySettings(max_connections=1, turn_seconds=1, silent_seconds=1, may_impersonate=False)
    shared = Heard(HopefulPool(), None, None, settings, None, None)
    caller = SimpleNamespace(link=SimpleNamespace(share=1), process=process, credentials=Credentials(1, 1, 1))
    async with trio.open_nursery() as nursery:
        async with domain.guard.window(Entrant("another", 2), domain.control):
            nursery.start_soon(shared._visit, caller, domain, unlimited(()))
            await trio.testing.wait_all_tasks_blocked()
            domain.suspect(2.0)
            domain.leave(process)
            await trio.sleep(3.0)
    assert not domain.is_ill
    assert not spoken


@pytest.mark.parametrize(("is_shared", "patience"), [(True, 2.0), (False, 5.0)])
async def test_where_users_share_a_server_a_new_process_brings_no_new_patience(autojump_clock, is_shared, patience):
    """A user who forks could otherwise keep the clients of others, with other limits, waiting all the time.

    But an honest client arrives in time, also on a busy machine: later it could get another client's limits."""
    shared = Conversations(None, None, None, None, None, None, Offences((lambda uid: uid // 10) if is_shared else None))
    domain = HopefulPool().domain
    domain.guard.is_on = True

    async def waited(uid: int, pid: int) -> float:
        began = trio.current_time()
        caller = SimpleNamespace(process=ProcessId(pid, 0), credentials=Credentials(pid, uid, 0))
        await shared._see_arrive(caller, domain, ConnectingClient())
        shared.offences.forget(caller.process)  # its last connection has ended
        return trio.current_time() - began

    assert await waited(20, 1) == 5.0
    assert await waited(21, 2) == pytest.approx(patience)
    assert await waited(30, 3) == 5.0
    await trio.sleep(40)
    assert await waited(20, 4) == pytest.approx(patience)
    await trio.sleep(21)
    assert await waited(20, 5) == 5.0, "an offence with little patience begins no new minute"


async def test_clients_that_mpsd_cannot_see_do_not_answer_for_each_other():
    """They are of several users; one that kept a domain waiting left all others a tenth of the patience."""
    offences = Offences()
    offences.note(None, 20)
    assert not offences.of(None, 30)
