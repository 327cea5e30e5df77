"""Who the peer of a socket is, and whether it is an operator: root, the daemon's own user, or a member of a group.

All facts come from the kernel (SO_PEERCRED, SO_PEERGROUPS, SO_PEERPIDFD); a peer's own claims count for nothing.
"""

import os
import socket
from array import array
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mpsd.host import processes
from mpsd.host.peers import groups_of, peer_credentials, process_unless_ended
from mpsd.model.authority import Caller
from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING, NOTHING, Bound, bound_of, reaches


class Peer(Struct, frozen=True):
    """A connected process, with the ids of mpsd's own namespaces; pid 0 if mpsd's pid namespace does not have the process.

    process: the same process, distinguished from later ones with this pid; None also if it ended before mpsd asked.
    gid: its group.  gids: that and its supplementary groups, sorted (model/arena_mode.py); the kernel allows 65,536.
    bound: which processes it reaches (model/reach.py).
    """

    pid: int
    uid: int
    is_operator: bool
    process: ProcessId | None = None
    gids: Sequence[int] = (65534,)  # nogroup
    bound: Bound = EVERYTHING
    gid: int = 65534

    def may_see(self, owner_uid: int | None) -> bool:
        """Return whether the peer may see what belongs to this user, or to no user (None)."""
        return self.is_operator or owner_uid is None or owner_uid == self.uid

    def may_name(self, owner_uid: int | None, pid: int, namespaces_of: Callable[[int], tuple[int, ...]]) -> bool:
        """Return whether the peer may make rules for this process of that user.

        owner_uid: None if the process has ended.  namespaces_of: called only for the peer's own process: a peer who holds
        another user's could keep mpsd from reading all of that user's.
        """
        return self.is_operator or (owner_uid == self.uid and reaches(self.bound, namespaces_of(pid)))


def peer_of(connection: socket.socket, admin_gid: int | None, *, trusts_containers: bool = False) -> Peer:
    """Identify the peer of a connection.

    Raises OSError if the kernel can no longer identify it, and if mpsd cannot read its process: an operator that is taken for a
    stranger learns that leases do not exist, and any other caller that its processes and arenas do not.
    admin_gid: the group whose members are operators; None: no group, or an unknown one.
    """
    credentials = peer_credentials(connection)
    process = process_unless_ended(connection, credentials)
    bound = _bound(process)
    gids = array("I", sorted((credentials.gid, *groups_of(connection))))  # last: 6 ms for 65,536; an unread peer comes again
    caller = Caller(credentials.uid, os.geteuid(), admin_gid in gids, trusts_containers or bound is EVERYTHING)
    return Peer(credentials.pid, credentials.uid, caller.is_owner, process, gids, bound, credentials.gid)


def unrecognized(peer: Peer, *, trusts_containers: bool = False) -> Peer:
    """Return what counts of a peer while it is not certain that its process is the one that connected: its ids alone."""
    return replace(peer, is_operator=peer.is_operator and trusts_containers, process=None, bound=NOTHING)


def _bound(process: ProcessId | None) -> Bound:
    """Raises OSError if it is not known."""
    if process is None:
        return NOTHING
    if namespaces := processes.read_pid_namespaces(process.pid):
        found = bound_of(namespaces)
    else:
        found = EVERYTHING if processes.is_in_our_namespace(process.pid) else NOTHING
    return found if processes.process_id(process.pid) == process else NOTHING  # another process may have got its pid
