"""Close connections in which messages are queued, in threads: a descriptor in such a message can be slow to close.

The kernel drops a descriptor with the last copy of its message, and may then wait for

- a socket that lingers: a signal every 50 ms ends that wait;
- a FUSE server that has a writeback cache, for written pages.  Only an answer, the end of that server, or an abort of the FUSE
  connection ends that wait.  So mpsd aborts the FUSE connections of a user who keeps more than MOST_STUCK connections waiting:
  else a user could use up mpsd's descriptors.

Prose: docs/security.md, "What no boundary promises"; decision 019.
"""

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from msgspec import Struct

from mpsd.host.peers import peer_credentials

log = structlog.get_logger()
MOST_STUCK = 8  # connections of a user; a client of an honest one leaves no file in its connection
STUCK_SECONDS = 3.0
FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_ABORTS_SECONDS = 1.0  # between two, while a user's connections stay stuck
_SHAKES = signal.SIGWINCH  # ignored without a handler; mpsd uses no window
_SHAKE_SECONDS = 0.05
_NO_UID = -1  # of a TCP connection


class _Drain(Struct, eq=False):
    """What a thread closes: whose connection it is at, since when, and how many connections of that user it has left."""

    uid: int = _NO_UID
    since: float = 0.0
    left: int = 0


_lock = threading.Lock()  # protects the next two; no other lock is taken while it is held
_draining: dict[int, _Drain] = {}  # by thread
_is_shaking = False
_left: list[socket.socket] = []  # connections for which no thread could start
_share_of: Callable[[int], int] = int  # a uid's own


def count_by(share_of: Callable[[int], int]) -> None:
    """Count the connections of a uid against this share from now on (UidRanges.share_of)."""
    global _share_of
    _share_of = share_of


def drain_soon(socks: list[socket.socket]) -> None:
    """Drain and close in a thread that no task waits for."""
    if not callable(signal.getsignal(_SHAKES)):
        with suppress(ValueError):  # not in the main thread
            signal.signal(_SHAKES, lambda number, frame: None)
    _left.extend(socks)
    waiting = _left.copy()
    try:
        trio.lowlevel.start_thread_soon(partial(_drain, waiting), lambda outcome: None)
    except RuntimeError:  # mpsd can start no further thread: open connections are better than a stopped event loop
        return
    _left.clear()


def _drain(socks: list[socket.socket]) -> None:
    """Close connections, after the descriptors queued in them.

    Closing a socket does not drop them if the keeper holds it too.  mpsd does not take them: the kernel drops them as it reads,
    and asks no file server, which could keep them open here, but for unwritten pages.  The peers see the end first.
    """
    uids = [peer_credentials(each).uid for each in socks]
    with _shaken() as drain:
        for place, sock in enumerate(socks):
            # `since` first: another thread must not see this user with the time of an earlier connection.
            drain.since, drain.left, drain.uid = time.monotonic(), uids[place:].count(uids[place]), uids[place]
            with sock, suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
                while _discard_next(sock):
                    pass


@contextmanager
def _shaken() -> Iterator[_Drain]:
    """Let this thread wait for no lingering socket: a signal ends the wait in close(2).

    Otherwise a user could fill mpsd with waiting threads and connections: each costs them nothing once they have hung up.
    """
    global _is_shaking
    drain = _Drain()
    with _lock:
        _draining[threading.get_ident()] = drain
        if not _is_shaking:
            with suppress(RuntimeError):  # no further thread; the next one tries again
                trio.lowlevel.start_thread_soon(_shake, lambda outcome: None)
                _is_shaking = True
    try:
        yield drain
    finally:
        with _lock:
            del _draining[threading.get_ident()]


def _shake() -> None:
    """Interrupt all draining threads again and again, until none is left; abort what no signal interrupts."""
    global _is_shaking
    aborts_at = 0.0
    while True:
        time.sleep(_SHAKE_SECONDS)
        with _lock:
            if not _draining:
                _is_shaking = False
                return
            for each in _draining:
                signal.pthread_kill(each, _SHAKES)
            stuck = _stuck(time.monotonic())
        if stuck and time.monotonic() >= aborts_at:
            aborts_at = time.monotonic() + _ABORTS_SECONDS
            _abort_servers(stuck)


def _stuck(now: float) -> Counter[int]:
    """Return the users of whom more than MOST_STUCK connections wait to be closed, by share.

    Never root: root of a container can have left them there, and root's mounts serve the whole machine.
    """
    found: Counter[int] = Counter()
    for each in _draining.values():
        if each.uid not in (_NO_UID, 0) and now - each.since > STUCK_SECONDS:
            found[_share_of(each.uid)] += each.left
    return Counter({share: count for share, count in found.items() if count > MOST_STUCK})


def _abort_servers(stuck: Counter[int]) -> None:
    """Abort the FUSE connections of these users that have requests waiting.  Their files then fail."""
    aborted: Counter[int] = Counter()
    for connection in _fuse_connections():
        with suppress(OSError, ValueError):  # it has ended, or is not ours to abort
            share = _share_of(connection.stat().st_uid)  # of the user who mounted it
            if share in stuck and int((connection / "waiting").read_text()) > 0:
                (connection / "abort").write_text("1")
                aborted[share] += 1
    for share, count in stuck.items():
        log.warning("connections.stuck", uid=share, connections=count, aborted_file_servers=aborted[share])


def _fuse_connections() -> list[Path]:
    try:
        return list(FUSE_CONNECTIONS.iterdir())
    except OSError:
        return []


def _discard_next(sock: socket.socket) -> bool:
    """Discard the next message; return False at the end (see `is_empty`).  Raises OSError."""
    while True:
        try:
            data, _, flags, _ = sock.recvmsg(1)
        except ConnectionResetError:
            continue  # a reset is reported once, before the queued data
        return bool(data or flags & socket.MSG_CTRUNC)
