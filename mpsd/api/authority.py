"""Who the peer of a socket is, and whether it is an operator: root, the daemon's own user, or a member of a group.

All facts come from the kernel (SO_PEERCRED, SO_PEERGROUPS, SO_PEERPIDFD); a peer's own claims count for nothing.
"""

import ctypes
import errno
import os
import socket
from array import array
from dataclasses import dataclass

from mpsd import processes
from mpsd.legacy.exchange import Caller
from mpsd.model import Credentials, ProcessId
from mpsd.policy.reach import EVERYTHING, NOTHING, Bound, bound_of, reaches
from mpsd.relay.peers import PeerEnded, peer_credentials, peer_process

_SO_PEERGROUPS = 59  # asm-generic/socket.h
_MAX_GROUPS = 65536  # NGROUPS_MAX
_MOST_BYTES = 1024  # the most that Python's own getsockopt returns


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected process, with the ids of mpsd's own namespaces; pid 0 if mpsd's pid namespace does not have the process.

    process: the same process, distinguished from later ones with this pid; None also if it ended before mpsd asked.
    gids: its group, then its supplementary groups.  bound: which processes it reaches (policy/reach.py).
    """

    pid: int
    uid: int
    is_operator: bool
    process: ProcessId | None = None
    gids: tuple[int, ...] = (65534,)  # nogroup
    bound: Bound = EVERYTHING

    def may_see(self, owner_uid: int | None) -> bool:
        """Return whether the peer may see what belongs to this user, or to no user (None)."""
        return self.is_operator or owner_uid is None or owner_uid == self.uid

    def may_name(self, owner_uid: int | None, namespaces: tuple[int, ...]) -> bool:
        """Return whether the peer may make rules for a process of that user in these pid namespaces.

        owner_uid: None if the process has ended.
        """
        return self.is_operator or (owner_uid == self.uid and reaches(self.bound, namespaces))


def peer_of(connection: socket.socket, admin_gid: int | None, *, trusts_containers: bool = False) -> Peer:
    """Identify the peer of a connection.  Raises OSError if the kernel can no longer identify it.

    admin_gid: the group whose members are operators; None: there is none, or it is not known.
    """
    credentials = peer_credentials(connection)
    gids = (credentials.gid, *_groups(connection))
    process = _process(connection, credentials)
    is_inside = trusts_containers or is_in_our_namespace(process)
    caller = Caller(credentials.uid, os.geteuid(), admin_gid in gids, is_inside)
    return Peer(credentials.pid, credentials.uid, caller.is_owner, process, gids, _bound(process))


def caller_of(connection: socket.socket, admin_gid: int | None, *, trusts_containers: bool = False) -> Caller:
    """Identify the peer of a command session, as `peer_of` does.  Raises OSError."""
    credentials = peer_credentials(connection)
    is_inside = trusts_containers or is_in_our_namespace(_process(connection, credentials))
    return Caller(credentials.uid, os.geteuid(), _is_member(connection, credentials.gid, admin_gid), is_inside)


def is_in_our_namespace(process: ProcessId | None) -> bool:
    """Return whether the process is in mpsd's own pid namespace.

    Root of a container without a user namespace has root's uid, and any group; the pid namespace distinguishes it
    (docs/decisions/030-root-of-a-container-is-no-operator.md).
    """
    return process is not None and processes.is_in_our_namespace(process.pid)


def _bound(process: ProcessId | None) -> Bound:
    if process is None:
        return NOTHING
    if processes.is_in_our_namespace(process.pid):
        found: Bound = EVERYTHING
    else:
        found = bound_of(processes.pid_namespaces(process.pid))
    return found if processes.is_alive(process) else NOTHING  # another process may have got its pid


def _is_member(connection: socket.socket, gid: int, admin_gid: int | None) -> bool:
    """Return whether the connected process is in the group, by its own groups, not by the user database's present contents."""
    try:
        return admin_gid in (gid, *_groups(connection))
    except OSError:
        return False


def _process(connection: socket.socket, credentials: Credentials) -> ProcessId | None:
    try:
        return peer_process(connection, credentials)
    except (PeerEnded, OSError):
        return None


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups of the process that connected.  Raises OSError."""
    try:
        return tuple(array("I", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)))
    except OSError as exc:
        if exc.errno != errno.ERANGE:
            raise
    return _many_groups(connection)


def _many_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the groups through the C library, which gives more of them than Python's own getsockopt.  Raises OSError."""
    groups = (ctypes.c_uint32 * _MAX_GROUPS)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "SO_PEERGROUPS")
    return tuple(groups[: size.value // ctypes.sizeof(ctypes.c_uint32)])
