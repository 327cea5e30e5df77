"""Accept connections of a Unix socket and begin them in turns: users alternate, before any work is done.  Operators go first.

Each turn of the event loop accepts a number of connections and begins fewer, at most one of each user; hung-up connections
are closed when they are accepted (native/include/mpsd_accept.h).  So a storm of one user's connections is sorted within
milliseconds, and costs other users no more than that.  Operators wait apart: root of a container without a user namespace can
take any uid, also theirs, and would otherwise have their connections refused.
"""

import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio
from msgspec import Struct

from mpsd.fairness.turns import Turns
from mpsd.host.draining import drain_soon
from mpsd.host.polling import is_readable
from mpsd.model.process import Credentials
from mpsd.native import ffi, lib

ACCEPTED = 64  # connections, in one turn of the event loop
BEGUN = 8
_TURN_SECONDS = 0.0005  # or as many as are accepted, or closed since they have hung up, in this time
_BEGIN_SECONDS = 0.002  # or as many as begin in this time: one with 65,536 groups takes 6 to 15 ms, a held process 40 ms
MOST_WAITING = 256  # connections of all users at one socket; a program that starts 200 sessions at once is served
ACCEPT_PAUSE_SECONDS = 0.1  # at each of mpsd's sockets, after an error of accept(2): most likely the limit of open files
_ROOM_SECONDS = 0.1
_NO_REQUEST = b""
_T = TypeVar("_T")


class Arrival(Struct, frozen=True):
    """A connection, and the ids of the process that made it, as mpsd's pid and user namespaces see them."""

    sock: socket.socket
    credentials: Credentials
    is_gone: bool = False  # the peer has hung up, and may have left descriptors in the socket


def accept(listener: socket.socket) -> Arrival | None:
    """Accept the next connection of a non-blocking listener; None if those examined had hung up.  Raises OSError."""
    return accept_for(listener, -1, _NO_REQUEST)[0]


def accept_for(listener: socket.socket, keeper: int, request: bytes) -> tuple[Arrival | None, int]:
    """Accept as `accept` does, and send the connection to the keeper with this request, unless the peer has hung up.

    Also returns 0, or the errno if the keeper did not take it.
    """
    out = ffi.new("struct mpsd_arrival *")
    fd = lib.mpsd_accept(listener.fileno(), keeper, request, len(request), out)
    if fd == -errno.ECONNABORTED:
        return None, 0
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    sock.setblocking(False)
    return Arrival(sock, Credentials(out.pid, out.uid, out.gid), bool(out.gone)), out.lost


def accepted(accept_one: Callable[[], Arrival | None], most: int) -> Iterator[Arrival]:
    """Yield waiting connections, as many as one turn of the event loop has time for.  Raises OSError."""
    until = time.monotonic() + _TURN_SECONDS
    gone: list[socket.socket] = []
    try:
        while most > 0 and time.monotonic() < until:
            try:
                arrival = accept_one()
            except BlockingIOError:
                return
            if arrival is None:
                continue
            most -= 1
            if arrival.is_gone:
                gone.append(arrival.sock)
            else:
                yield arrival
    finally:
        if gone:
            drain_soon(gone)


def in_time(arrivals: Iterable[_T]) -> Iterator[_T]:
    """Yield the first, and others as long as those before them began in little time: the rest begins in the next turn."""
    until = time.monotonic() + _BEGIN_SECONDS
    for arrival in arrivals:
        yield arrival
        if time.monotonic() > until:
            return


def hang_up(sock: socket.socket) -> None:
    """Close a connection; in a thread if data is queued, since descriptors in it may be slow to close."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RD)  # no more data can arrive
    if is_empty(sock):
        sock.close()
    else:
        drain_soon([sock])


def is_empty(sock: socket.socket) -> bool:
    """Return whether the queue of a connection is empty, after its peer can send no more.

    An empty message looks like the end, and others with descriptors can follow it.  So the kernel is asked for the ids of the
    sender: without room for them it sets MSG_CTRUNC for each message, but not at the end.  A stream has only data.
    """
    for _ in range(2):  # a reset is reported once, before the queued data
        try:
            if sock.type == socket.SOCK_SEQPACKET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            data, _, flags, _ = sock.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return not data and not flags & socket.MSG_CTRUNC
        except ConnectionResetError:
            continue
        except OSError:
            return True
    return False


async def serve_in_turn(
    listener: socket.socket,
    begin: Callable[[Arrival], None],
    refuse: Callable[[Arrival], None],
    share_of: Callable[[int], int],
    is_operator: Callable[[Arrival], bool],
    may_wait: int,
    failed: Callable[[OSError], None],
    room: Callable[[bool], int] = lambda is_operator: BEGUN,
    until_changed: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> None:
    """Accept until cancelled.  `refuse` gets the oldest of a user of whom more than `may_wait` wait, or, where more than
    MOST_WAITING wait in all, of the user with most; both own the connection then.  The oldest, since silent connections of a
    user must not keep out a later one that has a question.
    `share_of` returns the uid whose share a uid counts against.  `room` returns how many of operators, or of others, can be
    begun now, and is asked again at the latest when `until_changed` returns."""
    operators: Turns[Arrival] = Turns()
    others: Turns[Arrival] = Turns()

    def put(arrival: Arrival) -> None:
        turns = operators if is_operator(arrival) else others
        if oldest := turns.put_newest(share_of(arrival.credentials.uid), arrival, may_wait, MOST_WAITING):
            refuse(oldest)

    try:
        while True:
            if not (operators or others):
                await trio.lowlevel.wait_readable(listener)
            can_accept = True
            try:
                for arrival in accepted(partial(accept, listener), ACCEPTED):
                    put(arrival)
            except OSError as exc:
                can_accept = False
                failed(exc)
                if not (operators or others):
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
            await trio.lowlevel.checkpoint()
            left = BEGUN
            for turns in (operators, others):
                for arrival in in_time(turns.take(max(min(left, room(turns is operators)), 0) if turns else 0)):
                    begin(arrival)
                    left -= 1
            more_came = can_accept and is_readable(listener)  # of operators, who may have room
            if left == BEGUN and (operators or others) and not more_came:
                with trio.move_on_after(_ROOM_SECONDS):
                    await until_changed()
    finally:
        for arrival in (*operators, *others):
            hang_up(arrival.sock)
