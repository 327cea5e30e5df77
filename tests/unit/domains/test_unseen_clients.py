"""Clients that mpsd does not see: a server lists mpsd's own pid for them, and their connections show their ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.domains import unseen_clients
from mpsd.domains.domain import Domain
from mpsd.domains.unseen_clients import UnseenClients
from mpsd.domains.upkeep import Upkeep
from mpsd.host import peers
from mpsd.model.domain import Defaults, DomainState, ServerView
from tests.running import running
from tests.unit.domains.test_ending_strangers import SERVER
from tests.unit.domains.test_upkeep import GPUS, Failing, a_pool
from tests.unit.relay.test_speakers import KERNEL, needs_peer_pidfd

CONNECT = (
    "import socket, sys; ends = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)];"
    "[end.connect(sys.argv[1]) for end in ends]; sys.stdin.read()"
)
Client = tuple["subprocess.Popen[bytes]", list[socket.socket]]
Start = Callable[[], Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes that connect twice each."""
    started: list[Client] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        def one() -> Client:
            child = subprocess.Popen([sys.executable, "-c", CONNECT, str(tmp_path / "control")], stdin=subprocess.PIPE)
            started.append((child, [listener.accept()[0] for _ in range(2)]))
            return started[-1]

        yield one
    for child, ends in started:
        end(child)
        for each in ends:
            each.close()


def end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.communicate()


def silent_domain() -> tuple[Domain, Failing]:
    """Return a domain whose server listed mpsd's own pid before it was stopped."""
    vendor, servers = Failing("nothing"), {SERVER: ServerView(SERVER, 0, "ACTIVE", (os.getpid(),), "default", GPUS)}
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY, servers=servers)  # type: ignore[arg-type]
    domain.is_public, domain.applied_defaults = True, Defaults()
    domain.find_hindered("its vendor server, pid 7, is stopped")
    return domain, vendor


def upkeep_of(domain: Domain) -> Upkeep:
    pool = a_pool(domain)
    pool.settings = replace(pool.settings, spares=0)
    return Upkeep(pool, 1.0, None)  # type: ignore[arg-type]


@needs_peer_pidfd
async def test_a_silent_domain_is_replaced_once_its_unseen_client_has_ended(start: Start, autojump_clock: MockClock) -> None:
    """It never was: its user could close domains to others with no process left."""
    domain, vendor = silent_domain()
    child, [connection, _] = start()
    domain.unseen.note(connection)
    async with running(upkeep_of(domain).run):
        await trio.sleep(60)
        assert not vendor.is_killed
        end(child)
        await trio.sleep(60)
        assert vendor.is_killed


@pytest.mark.parametrize("is_adopted", [False, True], ids=["an older kernel", "after a restart"])
async def test_one_whose_end_cannot_be_seen_keeps_its_domain(
    start: Start, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_adopted: bool
) -> None:
    domain, vendor = silent_domain()
    child, [connection, _] = start()
    if is_adopted:
        domain.unseen.is_uncertain = True  # lifecycle.py sets it
    else:
        monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
        domain.unseen.note(connection)
    end(child)
    async with running(upkeep_of(domain).run):
        await trio.sleep(60)
        assert not vendor.is_killed


@needs_peer_pidfd
@pytest.mark.parametrize("are_numbered", [True, False], ids=["numbers", "before Linux 6.9"])
def test_each_process_takes_one_descriptor(start: Start, monkeypatch: pytest.MonkeyPatch, are_numbered: bool) -> None:
    """Each connection did: the kernel's name of a pidfd is the same for all processes, after Linux 6.9 too."""
    if are_numbered and KERNEL < (6, 9):
        pytest.skip("Linux 6.9 numbers pidfds by their processes")
    if not are_numbered:
        monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result([0o600, 7, *[0] * 8]))
        monkeypatch.setattr(unseen_clients, "_own_number", unseen_clients._own_number.__wrapped__)
    clients, started = UnseenClients(), [start(), start()]
    before = len(os.listdir("/proc/self/fd"))
    for _, ends in started:
        for connection in ends:
            clients.note(connection)
    assert len(clients._pidfds) == (2 if are_numbered else 4)
    clients.forget()
    assert len(os.listdir("/proc/self/fd")) == before


@needs_peer_pidfd
def test_one_too_many_counts_as_living_while_a_server_lists_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_clients, "_MOST", 1)
    clients, started = UnseenClients(), [start(), start()]
    for _, ends in started:
        clients.note(ends[0])
    for child, _ in started:
        end(child)
    assert [clients.may_live(is_listed=is_listed) for is_listed in (True, False)] == [True, False]


@needs_peer_pidfd
def test_one_that_has_ended_makes_room(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_clients, "_MOST", 1)
    clients = UnseenClients()
    for _ in range(2):
        child, ends = start()
        clients.note(ends[0])
        assert clients.may_live(is_listed=False)
        end(child)
    assert not clients.may_live(is_listed=True)
