"""Detect clients that hang up while they wait for room, a domain or their turn: such a wait ends at once, and takes no place.

A client's unread messages keep its connection readable, so only the hang-up itself can be waited for: by a separate epoll that
asks for nothing else.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress

import trio

_EVENTS = 64  # handled in one turn of the event loop; the end of a conversation takes a third of a millisecond


class HangUps:
    """Guards that each hang-up is reported once, and none of a connection that is no longer watched."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}  # by descriptor

    def watch(self, connection: socket.socket, tell: Callable[[], None]) -> None:
        """Watch until `forget`; `run` calls `tell` after a hang-up.

        Where the kernel lets mpsd watch nothing more (epoll_ctl(2): ENOSPC, ENOMEM), a hang-up is noticed when its turn comes.
        """
        self._told[connection.fileno()] = tell
        with suppress(OSError):
            self._epoll.register(connection, select.EPOLLONESHOT)  # the kernel always reports a hang-up

    def forget(self, connection: socket.socket) -> None:
        """Stop watching, before the connection is closed: the keeper has it open too, and would keep it in the epoll."""
        if self._told.pop(connection.fileno(), None):
            with suppress(OSError):
                self._epoll.unregister(connection)

    async def run(self) -> None:
        """Report hang-ups until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())  # for ever: most clients stay
            for descriptor, _ in self._epoll.poll(0, _EVENTS):
                if tell := self._told.get(descriptor):
                    tell()
