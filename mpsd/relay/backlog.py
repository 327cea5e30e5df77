"""Connections without a place: they stay open in the queue of a socket pair, and use no descriptor of mpsd.

If mpsd closed them, CUDA would run without MPS; if mpsd kept them, they could use up the places of other users.
The keeper holds both ends of the pair, so a restarted mpsd finds the connections there.  mpsd removes a connection from the
queue after it has given it to the keeper, or put it at the end: if mpsd dies in between, two copies are left, and the second
is dropped.  Prose: docs/relay.md, "Bounds".
"""

import errno
import os
import socket
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import AbstractContextManager

import trio
from msgspec import Struct, field, msgpack

from mpsd.host.arrivals import hang_up
from mpsd.host.descriptors import received, rights, spare_descriptors
from mpsd.model.process import ProcessId
from mpsd.relay.forwarding import has_hung_up

_TIMES_FREE = 4  # one user gets at most four fifths of the room
_QUEUED_BYTES = 4 << 20  # the kernel doubles it, which is enough for some 7,000 connections
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; only root may exceed net.core.wmem_max, with which 350 connections can wait
_BYTES_EACH = 1024  # the kernel counts 768 for a short message (measured)
_MOST_BYTES = 4096  # for each note
_ENDS = ("backlog.0.in", "backlog.0.out")  # their names at the keeper


class Note(Struct, frozen=True, array_like=True):
    """A waiting connection: its number, its door, and the messages of a domain to which its client did not respond."""

    number: int
    door: str
    greeting: list[bytes] = []


class _Entry(Struct):
    share: int
    cost: int
    waits_for_client: bool
    process: ProcessId | None
    listing: AbstractContextManager[None]


def _open_pair() -> tuple[socket.socket, socket.socket]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        first.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _QUEUED_BYTES)
    except PermissionError:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUED_BYTES)
    return first, second


class Backlog(Struct):
    """Guards that each connection waits once, that each user leaves room for others, and that the queue can be turned."""

    _ends: tuple[socket.socket, socket.socket] = field(default_factory=_open_pair)
    _entries: dict[int, _Entry] = field(default_factory=dict)  # by number
    _of: Counter[int] = field(default_factory=Counter)  # connections that wait for a place, by the uid of the share
    _used: Counter[int] = field(default_factory=Counter)  # bytes of all connections, by the uid of the share

    @property
    def of_all(self) -> int:
        """The number of connections that wait for a place, rather than for their client."""
        return self._of.total()

    def __len__(self) -> int:
        return len(self._entries)

    def process_of(self, note: Note) -> ProcessId | None:
        """Return the process of a waiting connection; None if it is not known."""
        return self._entries[note.number].process

    def of(self, share: int) -> int:
        """Return how many of this user wait for a place."""
        return self._of[share]

    def ends(self) -> list[tuple[str, socket.socket, int]]:
        """Return what the keeper has to hold: name, socket and note."""
        return [(name, end, 0) for name, end in zip(_ENDS, self._ends, strict=True)]

    def put(
        self, connection: socket.socket, note: Note, share: int, listing: AbstractContextManager[None],
        process: ProcessId | None = None, *, was_in: bool = False,
    ) -> bool:  # fmt: skip
        """Add a connection, whose descriptor stays the caller's, and list it while it waits.  False: too many wait.

        was_in: an earlier mpsd has let it wait; the order in which connections came, on which shares depend, is lost.
        """
        data = msgpack.encode(note)
        cost = _BYTES_EACH + 2 * len(data)
        room = self._ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - self._used.total()
        is_too_much = len(data) > _MOST_BYTES or cost > room or self._used[share] > _TIMES_FREE * room
        if (is_too_much and not was_in) or not self._send(connection, data):
            return False
        listing.__enter__()
        self._entries[note.number] = _Entry(share, cost, bool(note.greeting), process, listing)
        self._used[share] += cost
        self._of[share] += not note.greeting
        return True

    async def until_some(self) -> None:
        """Wait until a connection is in the queue."""
        await trio.lowlevel.wait_readable(self._ends[1])

    def first(self, most: int) -> Iterator[tuple[socket.socket, Note]]:
        """Yield the first connection so many times, or once each; the caller gets a copy, and has to `take` or `turn` it."""
        for _ in range(min(most, len(self._entries))):
            try:
                found = self._look()
            except OSError:
                return  # until a descriptor is free
            if found is None:
                return
            if found[1].number in self._entries:
                yield found
            else:
                found[0].close()  # the second copy
                self._drop()

    def take(self, note: Note) -> ProcessId | None:
        """Remove the first connection, after the caller has given its copy to the keeper; return what `process_of` does."""
        self._drop()
        entry = self._entries.pop(note.number)
        entry.listing.__exit__(None, None, None)
        self._used[entry.share] -= entry.cost
        self._of[entry.share] -= not entry.waits_for_client
        for counts in (self._used, self._of):
            if not counts[entry.share]:
                del counts[entry.share]
        return entry.process

    def turn(self, connection: socket.socket, note: Note) -> None:
        """Move the first connection to the end of the queue, and close this copy."""
        with connection:
            if self._send(connection, msgpack.encode(note)):
                self._drop()

    def resume(
        self, held: Iterable[tuple[str, socket.socket, int]], known: Container[int] = ()
    ) -> Iterator[tuple[socket.socket, Note]]:  # fmt: skip
        """Continue with the queue that the keeper holds, if it does; yield a copy of each, which the caller `put`s again.

        known: numbers of connections that do not wait any more.  One that has hung up is removed.  Raise OSError if no
        descriptor is free, not even a spare one: the rest of the queue would be dropped as second copies.
        """
        found = {name: end for name, end, _ in held if name in _ENDS}
        if len(found) < len(_ENDS):
            return
        for end in self._ends:
            end.close()
        self._ends = (found[_ENDS[0]], found[_ENDS[1]])
        for end in self._ends:
            end.setblocking(False)
        while True:
            with spare_descriptors():
                first = self._look()
            if first is None:
                return
            connection, note = first
            if note.number in self._entries:
                connection.close()
                return  # all have had their turn
            if note.number not in known and has_hung_up(connection):
                hang_up(connection)  # in a thread: the last copy is that in the queue, and its messages may be slow to close
            else:
                with connection:
                    if note.number not in known:
                        yield first
            self._drop()

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _send(self, connection: socket.socket, data: bytes) -> bool:
        try:
            self._ends[0].sendmsg([data], rights([connection.fileno()]), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:  # without CAP_SYS_ADMIN, RLIMIT_NOFILE bounds the descriptors that are in queues
            return False
        return True

    def _look(self) -> tuple[socket.socket, Note] | None:
        """Return a copy of the first connection; None if the queue is empty.  Raise OSError if mpsd may open no descriptor."""
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            data, ancillary, _, _ = self._ends[1].recvmsg(_MOST_BYTES, socket.CMSG_SPACE(4), flags)
        except BlockingIOError:
            return None
        if not (descriptors := received(ancillary).take()):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        return connection, msgpack.decode(data, type=Note)

    def _drop(self) -> None:
        """Remove the first message; the kernel closes the descriptor in it."""
        self._ends[1].recv(1, socket.MSG_DONTWAIT)
