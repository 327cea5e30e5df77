"""Who somebody on a socket of ours is, and whether that is an operator: root, the daemon's own user, members of a group.

The kernel tells (SO_PEERCRED, SO_PEERGROUPS) who connected; nothing that a peer says of itself counts.
"""

import ctypes
import grp
import os
import socket
from dataclasses import dataclass

from mpsd.legacy.exchange import Caller
from mpsd.relay.peers import peer_credentials

_SO_PEERGROUPS = 59
_MAX_GROUPS = 65536  # NGROUPS_MAX


@dataclass(frozen=True, slots=True)
class Peer:
    """Whoever connected, with the ids of mpsd's own namespaces; pid 0 where mpsd's pid namespace does not have it."""

    pid: int
    uid: int
    is_operator: bool

    def may_see(self, owner_uid: int | None) -> bool:
        """What belongs to this user, or to nobody (None)."""
        return self.is_operator or owner_uid is None or owner_uid == self.uid


def peer_of(connection: socket.socket, admin_group: str) -> Peer:
    """Raises OSError when it cannot be asked any more."""
    credentials = peer_credentials(connection)
    caller = Caller(credentials.uid, os.geteuid(), is_member(connection, credentials.gid, admin_group))
    return Peer(credentials.pid, credentials.uid, caller.is_owner)


def is_member(connection: socket.socket, gid: int, group: str) -> bool:
    """By the groups of the process that connected, not by what the user database says now.  No group has no members."""
    if not group:
        return False
    try:
        wanted = grp.getgrnam(group).gr_gid
        return wanted == gid or wanted in _groups(connection)
    except (KeyError, OSError):
        return False


def _groups(connection: socket.socket) -> list[int]:
    """The supplementary groups of the process that connected.  Raises OSError.

    By the C library: Python's own getsockopt takes at most 1024 bytes, and a user may have more groups than fit.
    """
    groups = (ctypes.c_uint32 * _MAX_GROUPS)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "SO_PEERGROUPS")
    return groups[: size.value // ctypes.sizeof(ctypes.c_uint32)]
