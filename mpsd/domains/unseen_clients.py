"""The clients of a domain in pid namespaces that mpsd does not see: whether one may live.

A server lists mpsd's own pid for them (relay/forwarding.py), which lives in any case.  The connection of each shows its end:
Linux 6.5 has a pidfd of the process that connected, whatever its namespace.
"""

import os
import socket

from msgspec import Struct, field

from mpsd.host.peers import PeerEnded, open_peer_pidfd
from mpsd.host.polling import is_readable

_MOST = 64  # processes; a server has some sixty clients
_NAMELESS = "anon_inode:"  # the kernel's name of any pidfd before Linux 6.9


class UnseenClients(Struct, eq=False):
    """Guards that such a client counts as living until its end is certain, and that each process takes one descriptor.

    is_uncertain: there was one whose end mpsd cannot see.
    """

    is_uncertain: bool = False
    _pidfds: dict[str, int] = field(default_factory=dict)  # by the kernel's name of the process

    def note(self, connection: socket.socket) -> None:
        """Note that the process that connected may have a channel."""
        try:
            pidfd = open_peer_pidfd(connection)
        except PeerEnded:
            return
        except OSError:
            self.is_uncertain = True
            return
        name = os.readlink(f"/proc/self/fd/{pidfd}")
        key = f"{name} {pidfd}" if name.startswith(_NAMELESS) else name
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
