"""Clients that hang up while they wait: for room, a domain or their turn.  Such a wait ends at once, and takes no place.

What a client has said already keeps its connection readable, so that only the hang-up itself can be waited for: by an epoll of
our own, in which nothing else is asked about.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress

import trio

_EVENTS = 256  # told in one turn of the event loop


class HangUps:
    """Guards that each hang-up is told once, and none of a connection that is not watched any more."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}  # by descriptor

    def watch(self, connection: socket.socket, tell: Callable[[], None]) -> None:
        """Until `forget`; told in `run`."""
        self._told[connection.fileno()] = tell
        self._epoll.register(connection, select.EPOLLONESHOT)  # a hang-up is told unasked

    def forget(self, connection: socket.socket) -> None:
        """Before it is closed: the keeper has it open too, and would keep it in the epoll."""
        if self._told.pop(connection.fileno(), None):
            with suppress(OSError):
                self._epoll.unregister(connection)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())  # for ever: most clients stay
            for descriptor, _ in self._epoll.poll(0, _EVENTS):
                if tell := self._told.get(descriptor):
                    tell()
