"""Identify the process that connected to a socket, and no later one with its pid.

    Linux 6.5 and later   SO_PEERPIDFD names the process itself: whether it lives is asked last, and while it lives no other
                          process has its pid
    before                the process that has the pid now, if it is of the user who connected; so mpsd notices a pid that
                          went to another user's process, but not one that went to the same user's
"""

import errno
import os
import select
import socket
import struct

from mpsd import processes
from mpsd.model import Credentials, ProcessId

_UCRED = struct.Struct("3i")
_SO_PEERPIDFD = 77  # asm-generic/socket.h


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
    if not is_certain and credentials.uid not in processes.uids(credentials.pid):
        raise PeerEnded(f"pid {credentials.pid}, which connected, has ended, and is another user's process now")
    return found


def _lives(connection: socket.socket) -> bool:
    """Return whether the process lives for certain; False if the kernel cannot tell.  Raise PeerEnded."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as exc:
        if exc.errno in (errno.ESRCH, errno.ENODATA, errno.EINVAL):
            raise PeerEnded("the process that connected has ended") from None
        return False
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        has_ended = bool(poll.poll(0))
    finally:
        os.close(pidfd)
    if has_ended:
        raise PeerEnded("the process that connected has ended")
    return True
