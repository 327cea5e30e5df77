"""Which process may speak on a connection: a client can give it away, with the limits that it has."""

import array
import contextlib
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from mpsd.domains.refuser import REFUSER_UID
from mpsd.errors import WrongSpeaker
from mpsd.host import peers, processes
from mpsd.host.peers import PeerEnded, peer_credentials
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay import message
from mpsd.relay.backlog import Note
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.conversation import Conversations
from mpsd.relay.forwarding import Forwarding, LinkSide
from mpsd.relay.progress import Track
from mpsd.relay.server import Relay
from tests.running import running
from tests.unit.relay.test_forwarding import PATIENCE, PRIVILEGED, pair, well

KERNEL = tuple(int(each) for each in os.uname().release.split("-")[0].split(".")[:2])
needs_peer_pidfd = pytest.mark.skipif(KERNEL < (6, 5), reason="Linux 6.5 has SO_PEERPIDFD")


@pytest.mark.parametrize("age", [0, 1], ids=["the same", "a later one"])
async def test_a_later_process_with_the_pid_does_not_speak_for_the_one_before(age: int) -> None:
    """It has the pid of the process that connected, but not its lease: it got that one's limits, or none."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    now = processes.find(os.getpid())
    assert now is not None
    link = Forwarding(link_client, False, speaker=now.pid, process=ProcessId(now.pid, now.start_time - age))
    client.send(b"hello")
    if age:
        with pytest.raises(WrongSpeaker, match="a later process"):
            await link.run(link_domain, PATIENCE, well)
    else:
        async with running(link.run, link_domain, PATIENCE, well):
            assert (await message.receive(domain)).data == b"hello"
    for end in (client, link_client, link_domain, domain):
        end.close()


@pytest.mark.parametrize(
    ("knows_pidfds", "is_early", "is_held"), [(False, True, True), (False, False, False), (True, True, False)]
)
async def test_on_an_older_kernel_no_process_is_served_for_what_was_sent_before_it_was_found(
    monkeypatch: pytest.MonkeyPatch, *, knows_pidfds: bool, is_early: bool, is_held: bool
) -> None:
    """Linux before 6.5: a client sent its handshake and ended; it was served as the process of root's that got its pid."""
    placed: list[ClientConnection] = []

    async def find_place(caller: ClientConnection) -> None:
        placed.append(caller)

    if not knows_pidfds:
        monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    client, ours = pair()
    with client, ours:
        who, process = peer_credentials(ours), processes.find(os.getpid())
        if is_early:
            client.send(b"hello")
        link = Forwarding(ours, False, speaker=who.pid, process=process)
        caller = ClientConnection(1, "control", ours, who, process, 0.0, link)
        assignment = SimpleNamespace(find_place=find_place)
        shared = Conversations(None, None, None, None, assignment, None)  # type: ignore[arg-type]
        with pytest.raises(WrongSpeaker, match="before its domain did") if is_held else contextlib.nullcontext():
            await shared.run(caller)
        assert placed == ([] if is_held else [caller])


def test_a_client_that_has_ended_is_no_later_process_with_its_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 6.5: mpsd asked again, and took the process that had the pid then."""
    monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    _, ours = ends = pair()
    with ends[0], ours:
        who = peer_credentials(ours)
        caller = ClientConnection(1, "control", ours, who, None, 0.0, Forwarding(ours, False), "mpsd cannot see who it is")
        with monkeypatch.context() as ended:
            ended.setattr(processes, "process_id", lambda pid: None)
            with pytest.raises(PeerEnded, match="has ended"):
                caller.identify()
        with pytest.raises(PeerEnded, match="has ended"):
            caller.identify()
    assert caller.process is None


@pytest.mark.parametrize("age", [0, 1], ids=["the same", "a later one"])
async def test_a_client_whose_pid_went_to_another_process_while_it_waited_is_held(age: int) -> None:
    """It was set aside with an answer to come; on Linux before 6.5 the answer counted as the later process's."""
    client, ours = pair()
    now = processes.find(os.getpid())
    assert now is not None
    begun: list[ClientConnection] = []
    shared = SimpleNamespace(
        progress=SimpleNamespace(begin=Track), keeper=SimpleNamespace(hold=lambda *_: None), open=Counter(),
        settings=SimpleNamespace(may_impersonate=False, trusts_containers=False), run=begun.append,
    )  # fmt: skip
    relay, note = Relay(shared), Note(1, "control", [b"greeting"])  # type: ignore[arg-type]
    before = ProcessId(now.pid, now.start_time - age)
    with client, ours:
        assert relay.backlog.put(ours, note, 0, contextlib.nullcontext(), before)
        relay._begin_late(ours, note, SimpleNamespace(start_soon=lambda *_: None), Counter())  # type: ignore[arg-type]
        assert [caller.link.is_doubtful for caller in begun] == [bool(age)]
    for end in relay.backlog._ends:
        end.close()


@pytest.mark.skipif(not PRIVILEGED, reason="only root may send other ids")
async def test_a_client_speaks_with_the_ids_that_it_connected_with() -> None:
    """With others its domain would start a server for them, without the limits that mpsd set for the client."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, True, speaker=os.getpid(), ids=Credentials(os.getpid(), 4711, 4712))
    other = array.array("i", (os.getpid(), 100_000, 100_001))
    client.sendmsg([b"hello"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, other)])
    async with running(link.run, link_domain, PATIENCE, well):
        first = await message.receive(domain)
    link_again, domain_again = pair()
    async with running(link.run, link_again, PATIENCE, well):
        repeated = await message.receive(domain_again)
    for got in (first, repeated):
        assert got is not None
        assert (got.data, got.credentials) == (b"hello", Credentials(os.getpid(), 4711, 4712))
    for end in (client, link_client, link_domain, domain, link_again, domain_again):
        end.close()


@pytest.mark.skipif(not PRIVILEGED, reason="only root may send other ids")
async def test_a_client_that_connected_with_the_uid_of_the_refusing_daemon_does_not_speak() -> None:
    """Its effective uid counts then, and a message has its real one: that daemon served it as its own user's."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, True, speaker=os.getpid(), ids=Credentials(os.getpid(), REFUSER_UID, 0))
    client.send(b"hello")
    with pytest.raises(WrongSpeaker, match="which would serve it"):
        await link.run(link_domain, PATIENCE, well)
    for end in (client, link_client, link_domain, domain):
        end.close()


async def test_what_a_client_said_before_it_ended_reaches_its_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False, speaker=os.getpid(), process=processes.find(os.getpid()))
    monkeypatch.setattr(processes, "find", lambda pid: None)
    client.send(b"goodbye")
    client.close()
    await link.run(link_domain, PATIENCE, well)
    assert (await message.receive(domain)).data == b"goodbye"
    for end in (link_client, link_domain, domain):
        end.close()


@pytest.mark.skipif(not PRIVILEGED, reason="only root may send other ids")
async def test_the_last_message_of_a_daemon_that_has_died_arrives() -> None:
    """The kernel refuses credentials of a dead process (ESRCH): the client was held for ever."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    says = "import socket; socket.socket(fileno=0).send(b'last words')"
    await trio.run_process([sys.executable, "-c", says], stdin=domain)
    domain.close()
    assert await Forwarding(link_client, True).run(link_domain, PATIENCE, well) is LinkSide.DOMAIN
    got = await message.receive(client)
    assert got is not None
    assert got.data == b"last words"
    for end in (client, link_client, link_domain):
        end.close()


def connect_and_end(client: socket.socket, listener: socket.socket) -> tuple[socket.socket, ProcessId]:
    """Return the accepted connection of a child that has ended since, and the child, which is not reaped."""
    child = os.fork()
    if not child:
        client.connect(listener.getsockname())
        signal.pause()
    accepted, _ = listener.accept()
    process = processes.find(child)
    assert process is not None
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return accepted, process


@pytest.mark.parametrize("is_known", [True, pytest.param(False, marks=needs_peer_pidfd)])
async def test_one_that_has_ended_gets_no_channel(tmp_path: Path, is_known: bool) -> None:
    """mpsd had freed its place, and the channel went to the process that has its connection: in no list, and without an end."""
    listener, client = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    listener.bind(str(tmp_path / "control"))
    listener.listen()
    link_client, process = connect_and_end(client, listener)
    link_client.setblocking(False)
    link_domain, domain = pair()
    link = Forwarding(link_client, False, speaker=process.pid, process=process if is_known else None)
    passed: list[bool] = []
    link.note_descriptors(passed.append)
    socket.send_fds(domain, [b"a channel"], [domain.fileno()])
    with pytest.raises(WrongSpeaker, match="has ended"):
        await link.run(link_domain, PATIENCE, well)
    with pytest.raises(BlockingIOError):
        client.recv(1, socket.MSG_DONTWAIT)
    assert not passed
    assert processes.collect(process.pid)
    for end in (listener, client, link_client, link_domain, domain):
        end.close()
