"""Identify the process that connected to a socket, and no later one with its pid.

    Linux 6.5 and later   SO_PEERPIDFD names the process itself: whether it lives is asked last, and while it lives no other
                          process has its pid
    before                the process that has the pid now, if it is of the user who connected.  It can be a later one of the
                          same user, until it sends a message (Recognition)
"""

import errno
import os
import socket
import struct
from array import array
from collections.abc import Callable
from typing import TypeVar

import trio
from msgspec import Struct
from msgspec.structs import replace

from mpsd.host import processes
from mpsd.host.descriptors import FULL, spare_descriptors
from mpsd.host.polling import is_readable
from mpsd.host.process_reader import UNREAD_SECONDS, Unanswered
from mpsd.model.authority import ROOT_UID, Caller
from mpsd.model.process import Credentials, ProcessId
from mpsd.native import ffi, lib

_UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERPIDFD = 77  # asm-generic/socket.h
_MAX_GROUPS = 65536  # NGROUPS_MAX
_MOST_BYTES = 1024  # the most that Python's own getsockopt returns
_LOOK_SECONDS = 1.0  # of a process of root's with 65,536 groups, a look for whose it is takes 15 ms
_UNKNOWN_SECONDS = UNREAD_SECONDS + 1  # by then one late read, as on a busy machine, keeps no process unread
_T = TypeVar("_T")


class PeerEnded(Exception):
    """The process that connected has ended; another may have the connection."""


def peer_credentials(connection: socket.socket) -> Credentials:
    """Return the ids of the process that connected, in this pid and user namespace; pid 0 if it is not visible."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Credentials(*_UCRED.unpack(raw))


def peer_process(connection: socket.socket, credentials: Credentials) -> ProcessId | None:
    """Return the process that connected; None if this pid namespace does not have it.  Raise PeerEnded or OSError.

    credentials: of peer_credentials.
    """
    found = processes.process_id(credentials.pid)
    is_certain = _lives(connection)
    if not credentials.pid:
        return None
    if found is None:
        raise PeerEnded(f"pid {credentials.pid}, which connected, has ended")
    if not is_certain and not processes.has_uid(credentials.pid, credentials.uid):
        raise PeerEnded(f"pid {credentials.pid}, which connected, has ended, and is another user's process now")
    return found


def names_its_peer(connection: socket.socket) -> bool:
    """Return whether the kernel names the process that connected, or reports its end; Linux before 6.5 does not."""
    try:
        os.close(open_peer_pidfd(connection))
    except PeerEnded:
        return True
    except OSError as exc:
        return exc.errno in FULL
    return True


class Recognition(Struct):
    """Guards that a process counts as the one that connected only once that is certain.

    Before Linux 6.5 the pid may have gone to this process since.  Only its own message shows that it has not: the kernel adds
    the sender's pid, and if mpsd found the process before the message was sent, and finds the same one after that, the process
    has sent it.  A message that was queued before shows nothing.
    process: that has the peer's pid; None: mpsd found none.
    """

    connection: socket.socket
    process: ProcessId | None
    is_certain: bool
    comes_later: bool = False  # the next message was sent after the process was found

    def note(self, sender_pid: int) -> None:
        """Note a message, before it is answered.  sender_pid: as the kernel reports it; 0: it does not.

        Raises OSError if mpsd cannot read the process: an operator who is taken for a stranger learns that leases do not exist.
        """
        if self.is_certain or self.process is None:
            return
        if self.comes_later and sender_pid == self.process.pid:
            self.is_certain = processes.process_id(sender_pid) == self.process
        self.comes_later = self.comes_later or not is_readable(self.connection)


def recognize(connection: socket.socket, process: ProcessId | None) -> Recognition:
    """Begin to recognize the process that connected.  process: that has its pid now.  Raises OSError."""
    is_certain = names_its_peer(connection)
    if not is_certain:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return Recognition(connection, process, is_certain, not is_readable(connection))


def has_ended(connection: socket.socket, process: ProcessId | None) -> bool:
    """Return whether the process that connected has ended; False if that is not known.  process: as found then, None if not."""
    try:
        if _lives(connection):
            return False
    except PeerEnded:
        return True
    except OSError:
        pass
    return process is not None and not processes.is_alive(process)


def _lives(connection: socket.socket) -> bool:
    """Return whether the process lives for certain; False if the kernel does not know.  Raise PeerEnded or OSError."""
    try:
        pidfd = open_peer_pidfd(connection)
    except OSError as exc:
        if exc.errno in FULL:
            raise
        return False
    try:
        has_ended = is_readable(pidfd)
    finally:
        os.close(pidfd)
    if has_ended:
        raise PeerEnded("the process that connected has ended")
    return True


def open_peer_pidfd(connection: socket.socket) -> int:
    """Return a pidfd of the process that connected, also of one in a pid namespace that mpsd does not see.

    If need be it is a spare descriptor.  Raises PeerEnded or OSError.
    """
    try:
        return _pidfd_of(connection)
    except OSError as exc:
        if exc.errno in (errno.ESRCH, errno.ENODATA, errno.EINVAL):
            raise PeerEnded("the process that connected has ended") from None
        raise


def _pidfd_of(connection: socket.socket) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as exc:
        if exc.errno not in FULL:
            raise
    with spare_descriptors():
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)


def caller_of(
    connection: socket.socket, admin_gid: int | None, *, trusts_containers: bool = False
) -> tuple[ProcessId | None, Caller]:
    """Identify the peer of a command session: return its process, None if it has ended or is not known, and its user.

    Raises OSError, also if mpsd cannot read the process of a user who may be an operator: one who is taken for a stranger gets
    wrong answers.
    """
    credentials = peer_credentials(connection)

    def is_member() -> bool:
        return admin_gid is not None and admin_gid in (credentials.gid, *groups_of(connection))

    return _caller(connection, credentials, is_member, trusts_containers=trusts_containers)


async def once_known(identify: Callable[[], _T], turn: trio.Lock) -> _T:
    """Return what `identify` returns of a process; try again for some seconds if it is unread.  Raises OSError.

    turn: of those that may wait together: one is identified while all other tasks that can run run once, as in 40 ms for a held
    process, or 15 ms for one with 65,536 groups.
    """
    until = trio.current_time() + _UNKNOWN_SECONDS
    while True:
        async with turn:
            try:
                return identify()
            except Unanswered:
                if trio.current_time() >= until:
                    raise
        await trio.sleep(_LOOK_SECONDS)


def is_operator(
    connection: socket.socket, admin_gid: int | None, *, trusts_containers: bool = False, if_unread: bool = False
) -> bool:
    """Return whether `caller_of` finds an operator; it asks about the process only where the user can be one.

    if_unread: the answer if mpsd cannot read that process.

    It is asked for each connection of a storm, and the kernel takes milliseconds to write 65,536 groups: so a process that has
    more than 256 gets no place of a member of the group.
    """
    try:
        credentials = peer_credentials(connection)
        is_ours = credentials.uid in (ROOT_UID, os.geteuid())
        is_member = not is_ours and admin_gid in (credentials.gid, *_few_groups(connection))
        if not is_ours and not is_member:
            return False
        return _caller(connection, credentials, lambda: is_member, trusts_containers=trusts_containers)[1].is_owner
    except Unanswered:
        return if_unread
    except OSError:
        return False


def _caller(
    connection: socket.socket, credentials: Credentials, is_member: Callable[[], bool], *, trusts_containers: bool
) -> tuple[ProcessId | None, Caller]:
    """is_member: asked last, since it takes 6 ms with 65,536 groups, and an unread caller is looked at again and again."""
    user = Caller(credentials.uid, os.geteuid())
    try:
        process = process_unless_ended(connection, credentials)
        is_inside = trusts_containers or is_in_our_namespace(process)
    except OSError:
        if not trusts_containers and (user.is_owner or is_member()):
            raise
        process, is_inside = None, trusts_containers
    return process, replace(user, is_admin=is_member(), is_inside=is_inside)


def is_in_our_namespace(process: ProcessId | None) -> bool:
    """Return whether the process is in mpsd's own pid namespace.  Raises OSError if that is not known.

    Root of a container without a user namespace has root's uid, and any group; the pid namespace distinguishes it
    (docs/decisions/030-root-of-a-container-is-no-operator.md).  One that has ended is not: its pid may be another's.
    """
    if process is None or not processes.is_in_our_namespace(process.pid):
        return False
    return processes.process_id(process.pid) == process


def process_unless_ended(connection: socket.socket, credentials: Credentials) -> ProcessId | None:
    """Return what `peer_process` does; None also if the process has ended.  Raises OSError if it is not known."""
    try:
        return peer_process(connection, credentials)
    except PeerEnded:
        return None


def groups_of(connection: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups of the process that connected.  Raises OSError."""
    try:
        return _few_groups(connection)
    except OSError as exc:
        if exc.errno != errno.ERANGE:
            raise
    return _many_groups(connection)


def _few_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the groups if they are at most 256.  Raises OSError, without reading any if they are more."""
    return tuple(array("I", connection.getsockopt(socket.SOL_SOCKET, lib.SO_PEERGROUPS, _MOST_BYTES)))


def _many_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the groups through the C library, which gives more of them than Python's own getsockopt.  Raises OSError."""
    groups = ffi.new("uint32_t[]", _MAX_GROUPS)
    size = ffi.new("uint32_t *", ffi.sizeof(groups))
    if lib.getsockopt(connection.fileno(), lib.SOL_SOCKET, lib.SO_PEERGROUPS, groups, size):
        raise OSError(ffi.errno, "SO_PEERGROUPS")
    return tuple(groups[0 : size[0] // ffi.sizeof("uint32_t")])


def may_impersonate() -> bool:
    """Return whether this process may send credentials that are not its own (CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            ours.sendmsg([b"?"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _UCRED.pack(os.getppid() or 1, 1, 1))])
        except OSError:
            return False
        return True
