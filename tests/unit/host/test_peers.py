"""Who has connected, by the kernel's word."""

import os
import socket
from collections.abc import Iterator

import pytest
import trio

from mpsd.host.arrivals import accept
from mpsd.host.peers import peer_credentials
from mpsd.model.process import Credentials
from mpsd.relay import message
from mpsd.relay.message import Message

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
