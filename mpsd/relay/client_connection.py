"""One client's connection to mpsd: its process, its progress, and its end."""

import select
import socket
from collections import Counter
from contextlib import suppress

import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.host.client_facts import NOTHING
from mpsd.host.inspector_messages import StartFacts
from mpsd.host.peers import PeerEnded, peer_process
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.forwarding import Forwarding

_LOOK_SECONDS = 1.0  # between looks at a client that mpsd cannot watch


def client_id(number: int, door: str) -> str:
    """Return the keeper's name of a client's connection."""
    return f"client.{number}.{door}"


class ClientConnection(Struct):
    """A client's process, and how far its connection has come."""

    number: int
    door: str  # the socket it came through: control, control_privileged
    connection: socket.socket
    credentials: Credentials
    process: ProcessId | None
    since: float
    link: Forwarding
    why_not: str = ""  # why its process is not known
    has_gone: bool = False  # since the process had ended
    facts: StartFacts = NOTHING  # what its process was started with, as read last
    has_arrived: bool = False  # at a domain; linked again, it is no further connection
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    places: Counter[int] = field(default_factory=Counter)  # those of which it has one, by the uid of their share (server.py)

    @property
    def client_id(self) -> str:
        return client_id(self.number, self.door)

    def identify(self) -> None:
        """Find out which process connected.  Raise PeerEnded or OSError.

        Once it has ended it stays so: before Linux 6.5 a later process could get its pid, and count as this one.
        """
        if self.has_gone:
            raise PeerEnded(self.why_not)
        try:
            self.process = peer_process(self.connection, self.credentials)
        except PeerEnded as exc:
            self.has_gone, self.why_not = True, str(exc)
            raise
        if self.process is not None:
            self.link.note_found(self.process)
        self.why_not = ""

    def domain_id(self, domain: str) -> str:
        return f"domain.{self.number}.{domain}"


def has_ended(connection: socket.socket) -> bool:
    """Return whether only the end can still be read; this takes nothing out."""
    try:
        data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not data and not ancillary


async def give_up_when_silent(caller: ClientConnection, domain: Domain, scope: trio.CancelScope) -> None:
    """Cancel the link when the domain falls silent.

    A client with contexts there stays: all connections of a process go to one domain.
    """
    await domain.silenced.wait()
    if caller.link.transcript is not None and caller.process not in domain.connected:
        domain.leave(caller.process)
        scope.cancel()


async def has_ended_when_it_sends(connection: socket.socket, seconds: float) -> bool:
    """Wait until a silent client sends something, at most this long; return whether it has ended.

    The time can be unlimited: a stopped process may be continued at any time.
    """
    with trio.move_on_after(seconds):
        await trio.lowlevel.wait_readable(connection)
    return has_ended(connection)


async def until_ended(connection: socket.socket) -> None:
    """Wait until the client sends no more, without reading what it has sent.

    Reading would close the last copies of the descriptors in it on the event loop, for as long as the client likes.  An
    unread message keeps the connection readable, so a separate epoll asks for the end alone.  If the kernel lets mpsd watch
    nothing more (ENOSPC, ENOMEM, EMFILE), it looks from time to time.
    """
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    while not poll.poll(0):
        with suppress(OSError), select.epoll() as ends:
            ends.register(connection, select.EPOLLRDHUP)
            await trio.lowlevel.wait_readable(ends.fileno())
        if not poll.poll(0):
            await trio.sleep(_LOOK_SECONDS)
