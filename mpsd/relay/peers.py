"""Who is calling on a socket."""

import socket
import struct

from mpsd.model import Credentials

_UCRED = struct.Struct("3i")


def peer_credentials(connection: socket.socket) -> Credentials:
    """The ids of the process that connected, as this pid and user namespace sees them; pid 0 if it does not see it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Credentials(*_UCRED.unpack(raw))
