"""Waiting until a vendor daemon has read the messages of a client that has gone."""

import socket
import threading
from contextlib import suppress

import trio

from mpsd.relay.vendor_connection import until_read

SECONDS = 30.0
ANSWERS = 3  # to each message: a client that reads none fills the daemon's way back first


def _answer_all(daemon: socket.socket) -> None:
    """Read and answer until the end, and wait while there is no room for an answer."""
    with suppress(ConnectionError):  # the end, with answers unread
        while daemon.recv(64):
            for _ in range(ANSWERS):
                daemon.send(b"answer")


def _fill(ours: socket.socket) -> None:
    """Send until the daemon reads nothing more."""
    ours.settimeout(1.0)
    with suppress(TimeoutError):
        while True:
            ours.send(b"command")
    ours.setblocking(False)


async def test_a_daemon_without_room_for_its_answers_reads_all() -> None:
    """Each waited for the other, and with them every other client of the domain."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = threading.Thread(target=_answer_all, args=(theirs,), daemon=True)
    daemon.start()
    with ours:
        await trio.to_thread.run_sync(_fill, ours)
        with trio.fail_after(SECONDS):
            await until_read(ours, lambda: True)
        ours.shutdown(socket.SHUT_RDWR)
    with theirs:
        await trio.to_thread.run_sync(daemon.join, SECONDS)


async def test_answers_stay_where_mpsd_leaves() -> None:
    """The keeper holds the connection, and the next mpsd goes on with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b"command")
        theirs.send(b"answer")
        with trio.CancelScope() as scope:
            scope.cancel()
            await until_read(ours, lambda: True)
        assert ours.recv(64, socket.MSG_DONTWAIT) == b"answer"
