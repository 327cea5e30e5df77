"""Close connections in which messages are queued, in threads: a descriptor in such a message can be slow to close.

The kernel drops a descriptor with the last copy of its message, and may then wait for

- a socket that lingers: a signal every 50 ms ends that wait;
- a FUSE server with a writeback cache, for written pages, or because its mount ends with the file.  Only an answer, the end of
  that server, or an abort of the FUSE connection ends that wait.  So where a user keeps more than MOST_STUCK connections
  waiting, mpsd aborts the silent FUSE servers of this user (file_servers.py): else a user could use up mpsd's descriptors.

Prose: docs/security.md, "What no boundary promises"; decision 019.
"""

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.host import file_servers
from mpsd.host.bare_threads import INTERRUPT, MOST_DESCRIPTORS, BareThreads
from mpsd.host.peers import peer_credentials

log = structlog.get_logger()
MOST_STUCK = 8  # connections of a user; a client of an honest one leaves no file in its connection
STUCK_SECONDS = 3.0
_ABORTS_SECONDS = 1.0  # between two, while a user's connections stay stuck
_SHAKE_SECONDS = 0.05
_NO_UID = 0xFFFFFFFF  # of a TCP connection
_NO_SHARE = -1  # of root and of TCP connections: root's mounts serve the whole machine


class _Drain(Struct, eq=False):
    """What a thread closes: the share of its connection, since when, and how many connections of that share it has left."""

    share: int
    left: int
    since: float = field(default_factory=time.monotonic)


_lock = threading.Lock()  # protects the next three; no other lock is taken while it is held
_draining: dict[int, _Drain] = {}  # by thread
_under_way: Counter[int] = Counter()  # connections that a thread has or will have, by share
_is_shaking = False
_aborting = threading.Lock()  # held while a thread aborts file servers, which can take a second for each share
_left: list[socket.socket] = []  # connections that no thread could take
_share_of: Callable[[int], int] = int  # a uid's own
_bare: BareThreads | None = None


def begin(share_of: Callable[[int], int], bare: BareThreads | None) -> None:
    """Count the connections of a uid against this share from now on (UidRanges.share_of).  Call it before clients connect.

    bare: the threads that close them; None: threads of trio, which keep mpsd's other descriptors open too while they wait.
    """
    global _share_of, _bare
    _share_of, _bare = share_of, bare


def drain_soon(socks: list[socket.socket]) -> None:
    """Drain and close in a thread that no task waits for."""
    if not callable(signal.getsignal(INTERRUPT)):
        with suppress(ValueError):  # not in the main thread
            signal.signal(INTERRUPT, lambda number, frame: None)
    _left.extend(socks)
    try:
        while part := _left[:MOST_DESCRIPTORS]:
            _hand_over(part)
            del _left[:MOST_DESCRIPTORS]
    except (OSError, RuntimeError):  # mpsd can start no further thread: open connections are better than a stopped event loop
        return


def _hand_over(socks: list[socket.socket]) -> None:
    """Give connections to a thread.  Raises OSError or RuntimeError, and has then done nothing."""
    uids = [peer_credentials(each).uid for each in socks]
    shares = [_NO_SHARE if each in (_NO_UID, 0) else _share_of(each) for each in uids]
    descriptors = [each.fileno() for each in socks]
    are_given = threading.Event()
    _count(shares, 1)
    try:
        if _bare is not None:
            _bare.start(descriptors, partial(_drain, shares=shares, are_given=are_given))
        else:
            work = partial(_drain, descriptors, shares=shares, are_given=are_given)
            trio.lowlevel.start_thread_soon(work, lambda outcome: None)
    except (OSError, RuntimeError):
        _count(shares, -1)
        raise
    for each in socks:
        if _bare is not None:
            each.close()  # not the last copy, for which the kernel would wait here
        else:
            each.detach()
    are_given.set()
    _begin_shaking()


def _count(shares: list[int], change: int) -> None:
    with _lock:
        for each in shares:
            _under_way[each] += change
            if not _under_way[each]:
                del _under_way[each]


def _drain(descriptors: list[int], shares: list[int], are_given: threading.Event) -> None:
    """Close connections, after the descriptors queued in them.

    Closing a socket does not drop them if the keeper holds it too.  The kernel drops them as their messages are read, and asks
    no file server, which could keep them open here, but for unwritten pages.  The peers see the end first.
    """
    are_given.wait()
    for place, (descriptor, share) in enumerate(zip(descriptors, shares, strict=True)):
        drain = _Drain(share, shares[place:].count(share))
        with _lock:
            _draining[threading.get_ident()] = drain
        try:
            with suppress(OSError), socket.socket(fileno=descriptor) as sock:
                sock.shutdown(socket.SHUT_RDWR)
                while _discard_next(sock):
                    pass
        finally:
            with _lock:
                del _draining[threading.get_ident()]
            _count([share], -1)


def _begin_shaking() -> None:
    """Let no thread wait for a lingering socket: a signal ends the wait in close(2).

    Otherwise a user could fill mpsd with waiting threads and connections: each costs them nothing once they have hung up.
    """
    global _is_shaking
    with _lock:
        if not _is_shaking:
            with suppress(RuntimeError):  # no further thread; the next connection tries again
                trio.lowlevel.start_thread_soon(_shake, lambda outcome: None)
                _is_shaking = True


def _shake() -> None:
    """Interrupt all draining threads again and again, until none is left; abort what no signal interrupts."""
    global _is_shaking
    aborts_at = 0.0
    while True:
        time.sleep(_SHAKE_SECONDS)
        with _lock:
            if not _under_way:
                _is_shaking = False
                return
            now = time.monotonic()
            for thread, drain in _draining.items():
                if now - drain.since > _SHAKE_SECONDS:
                    signal.pthread_kill(thread, INTERRUPT)
            stuck = _stuck(now)
        if stuck and now >= aborts_at and _aborting.acquire(blocking=False):
            aborts_at = now + _ABORTS_SECONDS
            try:
                trio.lowlevel.start_thread_soon(partial(_abort_servers, stuck), lambda outcome: _aborting.release())
            except RuntimeError:  # no further thread; the next turn tries again
                _aborting.release()


def _stuck(now: float) -> dict[int, int]:
    """Return how many connections wait to be closed, by share, of the shares with more than MOST_STUCK."""
    found: Counter[int] = Counter()
    for each in _draining.values():
        if each.share != _NO_SHARE and now - each.since > STUCK_SECONDS:
            found[each.share] += each.left
    return {share: count for share, count in found.items() if count > MOST_STUCK}


def _abort_servers(stuck: dict[int, int]) -> None:
    """Abort the silent FUSE servers of these users.  Their files then fail."""
    for share, count in stuck.items():
        aborted = file_servers.abort(share, _share_of)
        log.warning("connections.stuck", uid=share, connections=count, aborted_file_servers=aborted)


def _discard_next(sock: socket.socket) -> bool:
    """Discard the next message; return False at the end (see `is_empty`).  Raises OSError."""
    while True:
        try:
            data, _, flags, _ = sock.recvmsg(1)
        except ConnectionResetError:
            continue  # a reset is reported once, before the queued data
        return bool(data or flags & socket.MSG_CTRUNC)
