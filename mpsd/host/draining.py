"""Close connections in which messages are queued, in threads: a descriptor in such a message can be slow to close.

The kernel drops a descriptor with the last copy of its message, and may then wait for

- a socket that lingers: a signal every 50 ms ends that wait;
- a FUSE server that has a writeback cache, for written pages.  Only an answer, the end of that server, or an abort of the FUSE
  connection ends that wait.  So where a user keeps more than MOST_STUCK connections waiting, mpsd aborts the FUSE connections
  of this user that have files in them: else a user could use up mpsd's descriptors.  The uid alone is not enough: root of a
  container can take any uid, and must not have the mounts aborted that the host's user with that uid has.

Prose: docs/security.md, "What no boundary promises"; decision 019.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from msgspec import Struct, field

from mpsd.host.bare_threads import BareThreads
from mpsd.host.descriptors import ANCILLARY_BYTES, close_all, received
from mpsd.host.peers import peer_credentials
from mpsd.host.syscalls import file_system_of

log = structlog.get_logger()
MOST_STUCK = 8  # connections of a user; a client of an honest one leaves no file in its connection
STUCK_SECONDS = 3.0
_MOST_LOOKS = 64  # threads of one user that wait for a file server after they have looked
_LOOK_SECONDS = 5.0  # to look takes a fraction of a millisecond
_ROOM_FOR_IDS = socket.CMSG_SPACE(12)  # SCM_CREDENTIALS
FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_ABORTS_SECONDS = 1.0  # between two, while a user's connections stay stuck
_SHAKES = signal.SIGWINCH  # ignored without a handler; mpsd uses no window
_SHAKE_SECONDS = 0.05
_NO_UID = -1  # of a TCP connection


class _Drain(Struct, eq=False):
    """What a thread closes: whose connection it is at, since when, and how many connections of that user it has left.

    file_systems: of the files that were found in it.  is_look: it closes what it looked at.
    """

    uid: int = _NO_UID
    since: float = 0.0
    left: int = 0
    file_systems: set[int] = field(default_factory=set)
    is_look: bool = False


class _Stuck(Struct):
    """The connections of a share that wait to be closed, and the file systems of the files in them."""

    count: int = 0
    file_systems: set[int] = field(default_factory=set)


_lock = threading.Lock()  # protects the next two; no other lock is taken while it is held
_draining: dict[int, _Drain] = {}  # by thread
_is_shaking = False
_left: list[socket.socket] = []  # connections for which no thread could start
_share_of: Callable[[int], int] = int  # a uid's own
_bare: BareThreads | None = None


def begin(share_of: Callable[[int], int]) -> None:
    """Count the connections of a uid against this share from now on (UidRanges.share_of).  Call it before clients connect."""
    global _share_of, _bare
    _share_of = share_of
    with suppress(OSError, RuntimeError):  # then messages are dropped unseen
        _bare = _bare or BareThreads()


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
            drain.file_systems = set()
            with sock, suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
                while True:
                    if _is_crowded(drain.uid) and _has_descriptors(sock):
                        _look(sock, drain)
                    if not _discard_next(sock):
                        break


@contextmanager
def _shaken(*, is_look: bool = False) -> Iterator[_Drain]:
    """Let this thread wait for no lingering socket: a signal ends the wait in close(2).

    Otherwise a user could fill mpsd with waiting threads and connections: each costs them nothing once they have hung up.
    is_look: in a bare thread, while a thread that drains is shaken.
    """
    global _is_shaking
    drain = _Drain(is_look=is_look)
    with _lock:
        _draining[threading.get_ident()] = drain
        if not _is_shaking and not is_look:
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


def _stuck(now: float) -> dict[int, _Stuck]:
    """Return the shares of which more than MOST_STUCK connections wait to be closed.

    Never root's: root's mounts serve the whole machine.
    """
    found: dict[int, _Stuck] = {}
    for each in _draining.values():
        if each.uid not in (_NO_UID, 0) and now - each.since > STUCK_SECONDS:
            stuck = found.setdefault(_share_of(each.uid), _Stuck())
            stuck.count += each.left
            stuck.file_systems |= each.file_systems
    return {share: stuck for share, stuck in found.items() if stuck.count > MOST_STUCK}


def _abort_servers(stuck: dict[int, _Stuck]) -> None:
    """Abort the FUSE connections of these users that have files there.  Their files then fail."""
    for share, found in stuck.items():
        aborted = sum(_abort(FUSE_CONNECTIONS / str(number), share) for number in found.file_systems)
        log.warning("connections.stuck", uid=share, connections=found.count, aborted_file_servers=aborted)


def _abort(connection: Path, share: int) -> bool:
    """Abort this FUSE connection if a user of the share has mounted it, and it has requests waiting; return whether it was."""
    with suppress(OSError, ValueError):  # none, or it has ended, or is not ours to abort
        if _share_of(connection.stat().st_uid) == share and int((connection / "waiting").read_text()) > 0:
            (connection / "abort").write_text("1")
            return True
    return False


# -- looks -----------------------------------------------------------------------------------------------------------------


def _is_crowded(uid: int) -> bool:
    """Return whether so many connections of this user are being closed that mpsd may have to abort a file server."""
    if uid in (_NO_UID, 0):
        return False
    share = _share_of(uid)
    with _lock:
        alike = [each for each in _draining.values() if each.uid != _NO_UID and _share_of(each.uid) == share]
    looks = sum(each.is_look for each in alike)
    return sum(each.left for each in alike) > MOST_STUCK and looks < _MOST_LOOKS


def _has_descriptors(sock: socket.socket) -> bool:
    """Return whether the next message brings descriptors: with room for its sender's ids alone, the kernel sets MSG_CTRUNC."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with suppress(OSError):
        return bool(sock.recvmsg(1, _ROOM_FOR_IDS, socket.MSG_PEEK | socket.MSG_DONTWAIT)[2] & socket.MSG_CTRUNC)
    return False


def _look(sock: socket.socket, drain: _Drain) -> None:
    """Note the file systems of the files in the next message, without opening them in mpsd's own table of descriptors."""
    has_looked = threading.Event()
    if _bare is None:
        return
    with suppress(OSError):
        _bare.start(sock, partial(_look_apart, uid=drain.uid, file_systems=drain.file_systems, has_looked=has_looked))
        has_looked.wait(_LOOK_SECONDS)


def _look_apart(descriptor: int, uid: int, file_systems: set[int], has_looked: threading.Event) -> None:
    """Look, in a bare thread.  It then closes copies of the files, and may wait for their server."""
    with _shaken(is_look=True) as look:
        look.file_systems, look.left = file_systems, 1
        look.since, look.uid = time.monotonic(), uid
        found: list[int] = []
        with suppress(OSError, ValueError):  # the latter: it has no copy of the connection
            found = _peek(descriptor)
            file_systems.update(map(file_system_of, found))
        has_looked.set()
        close_all([descriptor, *found])


def _peek(descriptor: int) -> list[int]:
    """Return copies of the descriptors in the next message.  Raise OSError."""
    sock = socket.socket(fileno=descriptor)
    try:
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        return received(sock.recvmsg(1, _ROOM_FOR_IDS + ANCILLARY_BYTES, flags)[1]).take()
    finally:
        sock.detach()


def _discard_next(sock: socket.socket) -> bool:
    """Discard the next message; return False at the end (see `is_empty`).  Raises OSError."""
    while True:
        try:
            data, _, flags, _ = sock.recvmsg(1)
        except ConnectionResetError:
            continue  # a reset is reported once, before the queued data
        return bool(data or flags & socket.MSG_CTRUNC)
