"""When mpsd knows that a client may have a channel to a server of its domain."""

import errno
import os
import socket
from types import SimpleNamespace

import pytest
import trio.testing

from mpsd.domains.domain_view import view_of
from mpsd.domains.rules.placement import Join, PlacementRequest, Rules, place
from mpsd.host import processes
from mpsd.model.domain import Defaults, ServerView
from mpsd.model.process import Credentials
from mpsd.relay import message
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.forwarding import Forwarding
from tests.running import running
from tests.unit.relay.test_conversation import HopefulPool, NobodyApart
from tests.unit.relay.test_linked_again import KnownClients, NoFacts, accepted
from tests.unit.relay.test_overdue import OWN, PATIENCE, VendorDaemon


def conversations(pool, separation):
    keeper = SimpleNamespace(hold=lambda name, end: None, drop=lambda name: None)
    settings = RelaySettings(max_connections=1, turn_seconds=PATIENCE, silent_seconds=1, may_impersonate=False)
    assignment = Assignment(pool, KnownClients(), separation, is_per_gpu=False, reader=NoFacts())
    assignment.may_place.set()
    return Conversations(pool, keeper, None, settings, assignment, refusals=None)


@pytest.mark.parametrize("is_by_domain", [True, False])
@pytest.mark.parametrize("has_left", [False, True])
async def test_it_has_one_once_a_descriptor_is_passed_also_where_it_has_left(tmp_path, has_left, is_by_domain):
    """A process that left its domain with one connection kept the channel that it got on another: the domain looked empty, and
    the next user hung there.  One that kept its connection open was missing where mpsd noted whom a new server has served: a
    client of another container could be convicted of what it left running."""
    pool, process = HopefulPool(), processes.process_id(os.getpid())
    domain = pool.domain
    domain.control = VendorDaemon(str(tmp_path / "control"))
    shared = conversations(pool, NobodyApart())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        for end in (ours, theirs, listener):
            end.setblocking(False)
        listener.bind(domain.control.path)
        listener.listen()
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        caller = ClientConnection(1, "control", ours, Credentials(process.pid, OWN, OWN), process, 0.0, link)
        async with running(shared.run, caller):
            with await accepted(listener) as backend:
                assert not domain.served
                if has_left:
                    domain.leave(process)
                sender, receiver = (backend, theirs) if is_by_domain else (theirs, backend)
                memory = os.memfd_create("channel", os.MFD_CLOEXEC)
                socket.send_fds(sender, [b"channel"], [memory])
                os.close(memory)
                (await message.receive(receiver)).close()
                assert domain.served == ({process} if is_by_domain else set())
        may_have_one = is_by_domain or not has_left
        assert (domain.served, domain.occupancy) == (({process}, 1) if may_have_one else (set(), 0))


async def test_one_in_whose_handshake_mpsd_was_restarted_is_met_before_its_channel_counts(tmp_path):
    """mpsd did not watch it, nor count it as a client, nor note its user as one whom the server has served."""
    pool, process, noted = HopefulPool(), processes.process_id(os.getpid()), []
    domain = pool.domain
    domain.control = VendorDaemon()

    class Noted(NobodyApart):
        def served(self, process, domain):
            noted.append(("served", process in domain.members))

    pool.client_adopted.subscribe(lambda process, domain: noted.append(("adopted", process in domain.served)))
    shared = conversations(pool, Noted())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, daemon:
        theirs.close()
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        caller = ClientConnection(1, "control", ours, Credentials(process.pid, OWN, OWN), process, 0.0, link)
        await shared.resume(caller, domain, backend)
    assert noted == [("adopted", True), ("served", True)]


async def test_the_domain_is_that_of_one_that_mpsd_does_not_see_in_a_handshake_from_before_a_restart(tmp_path):
    """The domain looked empty, or like the user's whose server was about to end: another user's client was placed there, and
    ended the server that started for the first one."""
    pool = HopefulPool()
    domain = pool.domain
    domain.control, domain.applied_defaults, domain.is_public = VendorDaemon(), Defaults(), True
    domain.servers = {1: ServerView(1, OWN + 1, "ACTIVE", (), domain.name, domain.gpus)}
    shared = conversations(pool, NobodyApart())

    def joins(uid):
        ask = PlacementRequest(uid, frozenset())
        return isinstance(place(ask, [view_of(domain, Defaults())], Rules(max_domains=1)), Join)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, daemon:
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        caller = ClientConnection(1, "control", ours, Credentials(0, OWN, OWN), None, 0.0, link)
        async with running(shared.resume, caller, domain, backend):
            await trio.testing.wait_all_tasks_blocked()
            assert domain.occupancy == 1
            assert [joins(uid) for uid in (OWN, OWN + 1, OWN + 2)] == [True, False, False]
        assert domain.unseen.may_live(is_listed=True), "it may have a channel"
        domain.unseen.forget()
    assert domain.occupancy == 0


@pytest.mark.parametrize("is_read_in_time", [True, False], ids=["before its channel", "after its handshake"])
async def test_one_that_mpsd_could_not_read_at_a_restart_is_known_later(autojump_clock, monkeypatch, is_read_in_time):
    """Its channel was not stored, and once it had a context, mpsd took it for a stranger, and ended its work."""
    pool, process, find = HopefulPool(), processes.process_id(os.getpid()), processes.process_id
    domain = pool.domain
    domain.control = VendorDaemon()
    shared = conversations(pool, NobodyApart())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    is_readable = False

    def process_id(pid):
        if not is_readable:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return find(pid)

    monkeypatch.setattr(processes, "process_id", process_id)
    with ours, theirs, daemon:
        for end in (ours, theirs, daemon):
            end.setblocking(False)
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        why_not = "mpsd cannot see who it is: Too many open files"
        caller = ClientConnection(1, "control", ours, Credentials(process.pid, OWN, OWN), None, 0.0, link, why_not)
        shared.open[None] += 1
        async with running(shared.resume, caller, domain, backend):
            await trio.testing.wait_all_tasks_blocked()
            is_readable = is_read_in_time
            socket.send_fds(daemon, [b"channel"], [daemon.fileno()])
            (await message.receive(theirs)).close()
            assert domain.served == ({process} if is_read_in_time else set())
            theirs.close()
            await trio.sleep(5)
            is_readable = True
            await trio.sleep(5)
            assert (domain.served, domain.admitted) == ({process}, {process.pid: process})
        assert +shared.open == {process: 1}


async def test_one_that_ended_before_mpsd_could_read_it_is_not_waited_for(autojump_clock, monkeypatch):
    pool = HopefulPool()
    pool.domain.control = VendorDaemon()
    shared = conversations(pool, NobodyApart())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, daemon:
        ours.setblocking(False)
        theirs.close()
        link = Forwarding(ours, may_impersonate=False, share=OWN)
        caller = ClientConnection(1, "control", ours, Credentials(4_194_305, OWN, OWN), None, 0.0, link, "not read")
        with trio.fail_after(60):
            await shared.resume(caller, pool.domain, backend)
    assert not pool.domain.admitted
