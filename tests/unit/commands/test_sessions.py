"""Command sessions over a real socket."""

import os
import socket
from pathlib import Path

import trio

from mpsd.commands.sessions import GREETING, Sessions, SessionSettings
from tests.lingering import lingering
from tests.running import running
from tests.unit.commands.language.fake_board import FakeBoard


async def test_unread_descriptors_keep_no_place_of_a_session(short_dir: Path) -> None:
    """A session counted until they were closed, for as long as their sender liked: a user could so take all places."""
    sessions = Sessions(FakeBoard(), lambda text: None, SessionSettings(max_sessions=1, idle_seconds=60))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, lingering() as fd:
        listener.bind(str(short_dir / "door"))
        listener.listen()
        listener.setblocking(False)
        with _front_end(listener) as other:
            other.send(b"another version")
            socket.send_fds(other, [b"unread"], [fd])
            os.close(fd)
            async with trio.open_nursery() as nursery, running(sessions.serve, listener, nursery):
                with trio.fail_after(5):  # the descriptor lingers for ten seconds
                    await trio.lowlevel.wait_readable(other)
                    with _front_end(listener) as ours:
                        ours.send(GREETING)
                        await trio.lowlevel.wait_readable(ours)
                        assert ours.recv(4096) == GREETING
                    await sessions.settled()


def _front_end(listener: socket.socket) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(listener.getsockname())
    return made
