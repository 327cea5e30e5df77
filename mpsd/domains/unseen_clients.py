"""The clients of a domain in pid namespaces that mpsd does not see: whether one may live.

A server lists mpsd's own pid for them (relay/forwarding.py), which lives in any case.  The connection of each shows its end:
Linux 6.5 has a pidfd of the process that connected, whatever its namespace.
"""

import os
import socket
from functools import cache

from msgspec import Struct, field

from mpsd.host.peers import PeerEnded, open_peer_pidfd
from mpsd.host.polling import is_readable

_MOST = 64  # processes; a server has some sixty clients


class UnseenClients(Struct, eq=False):
    """Guards that such a client counts as living until its end is certain, and that each process takes one descriptor.

    Before Linux 6.9 each connection takes one: all pidfds have the same inode number.
    is_uncertain: there was one whose end mpsd cannot see.
    """

    is_uncertain: bool = False
    _pidfds: dict[int, int] = field(default_factory=dict)  # by their inode numbers, which are the processes'

    def note(self, connection: socket.socket) -> None:
        """Note that the process that connected may have a channel."""
        try:
            own = _own_number()
            pidfd = open_peer_pidfd(connection)
        except PeerEnded:
            return
        except OSError:
            self.is_uncertain = True
            return
        number = os.fstat(pidfd).st_ino
        key = -pidfd if number == own else number
        self._drop_ended()
        if key not in self._pidfds and len(self._pidfds) < _MOST:
            self._pidfds[key] = pidfd
            return
        self.is_uncertain |= key not in self._pidfds
        os.close(pidfd)

    def may_live(self, *, is_listed: bool) -> bool:
        """Return whether one may live.  is_listed: whether a server lists one."""
        self._drop_ended()
        return bool(self._pidfds) or (is_listed and self.is_uncertain)

    def forget(self) -> None:
        """Forget all of them: the servers have ended."""
        self.is_uncertain = False
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])

    def _drop_ended(self) -> None:
        for key in [key for key, pidfd in self._pidfds.items() if is_readable(pidfd)]:
            os.close(self._pidfds.pop(key))


@cache
def _own_number() -> int:
    """Return the inode number of a pidfd of mpsd's own process.  Raises OSError."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        return os.fstat(pidfd).st_ino
    finally:
        os.close(pidfd)
