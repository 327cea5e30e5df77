"""Who has connected, by the kernel's word."""

import errno
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import trio

from mpsd.host import peers, processes
from mpsd.host.arrivals import accept
from mpsd.host.peers import PeerEnded, is_operator, once_known, peer_credentials, peer_process
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay import message
from mpsd.relay.message import Message
from tests.rounds import Rounds
from tests.unit.relay.test_backlog import descriptors_all_in_use

UID = 3_000_000_000  # as of a range of /etc/subuid above 2,147,483,648, where FreeIPA's begin


@pytest.fixture
def as_high_uid() -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(UID)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.root
def test_a_high_uid_is_the_same_wherever_it_is_read(as_high_uid: None) -> None:
    """It was a negative number here, in no range of /etc/subuid: each uid of such a range had a share of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    ) as client:
        listener.bind(f"\0mpsd-peers-{os.getpid()}")
        listener.listen()
        client.connect(listener.getsockname())
        arrival = accept(listener)
        assert arrival is not None
        with arrival.sock:
            assert arrival.credentials == peer_credentials(arrival.sock) == Credentials(os.getpid(), UID, os.getegid())


@pytest.mark.root
async def test_a_message_has_a_high_uid_in_both_directions() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        said = Credentials(os.getpid(), UID, UID + 1)
        with trio.fail_after(5):
            await message.send(ours, Message(b"x", [], None), said)
            received = await message.receive(theirs)
        assert received is not None
        assert received.credentials == said


def test_without_a_free_descriptor_a_later_process_with_the_pid_is_told_apart_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsd took it for the one that connected, if it was of the same user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    child = os.fork()
    if child == 0:
        try:
            near, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(theirs, [b"x"], [near.fileno()])
        finally:
            os._exit(0)
    with ours, theirs:
        _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    monkeypatch.setattr(processes, "process_id", lambda pid: ProcessId(pid, 1))
    monkeypatch.setattr(processes, "has_uid", lambda pid, uid: True)
    with socket.socket(fileno=fd) as made:
        who = peer_credentials(made)
        with descriptors_all_in_use(), pytest.raises(PeerEnded):
            peer_process(made, who)
        monkeypatch.setattr(peers, "spare_descriptors", nullcontext)
        with descriptors_all_in_use(), pytest.raises(OSError, match="Too many open files"):
            peer_process(made, who)


@pytest.mark.root
@pytest.mark.parametrize(("count", "is_found"), [(200, True), (60_000, False)])
def test_to_ask_for_operators_reads_few_groups(monkeypatch: pytest.MonkeyPatch, count: int, is_found: bool) -> None:
    """With the most groups that Linux allows, a user who kept connecting kept everybody from mpsd.sock: 8 ms for each."""
    monkeypatch.setattr(peers, "_many_groups", lambda connection: pytest.fail("it takes milliseconds"))
    before, uid, gid = os.getgroups(), os.geteuid(), 70_000
    os.setgroups([gid, *range(100_000, 100_000 + count)])
    try:
        os.seteuid(12_345)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    finally:
        os.seteuid(uid)
        os.setgroups(before)
    with ours, theirs:
        assert is_operator(ours, gid) == is_found
        assert not is_operator(ours, gid + 1)
        assert not is_operator(ours, None)


async def test_callers_that_were_unread_are_looked_at_in_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were looked at in one turn of the event loop, each for up to 40 ms."""
    rounds, looks, turn = Rounds(), Counter[int](), trio.Lock()
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.0)

    def identify() -> None:
        looks[rounds.number] += 1
        if looks.total() <= 20:
            raise Unanswered(errno.EBUSY, "processes of this user are not read for 5 s")

    trio.lowlevel.add_instrument(rounds)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(once_known, identify, turn)
    trio.lowlevel.remove_instrument(rounds)
    assert looks.total() == 40
    assert max(looks.values()) == 1
