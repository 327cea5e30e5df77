"""Check the listener of a socket by the credentials that the kernel reports, before this program trusts it as mpsd.

The same rule in C: clients/c/include/mpsd/code/peer.h.  Why: mpsd's docs/decisions/031-a-client-asks-who-listens.md.
"""

import errno
import os
import socket
import struct

OVERFLOW_UID = 65534  # the kernel's uid for users that this user namespace does not map: user_namespaces(7)
_UID_MAP = "/proc/self/uid_map"
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred, unix(7)


def check(sock: socket.socket, path: str) -> None:
    """Check the listener, after connect and before sending.  Raises PermissionError if the listener is another user than root
    or this one; OSError."""
    _, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    own = os.geteuid()
    if not is_trusted(uid, own, is_root_hidden=uid == OVERFLOW_UID and hides_root(_read(_UID_MAP))):
        raise PermissionError(errno.EPERM, refusal(uid, gid, own), path)


def is_trusted(listens: int, own: int, *, is_root_hidden: bool) -> bool:
    return listens in (0, own) or (is_root_hidden and listens == OVERFLOW_UID)


def hides_root(uid_map: str) -> bool:
    """Return whether the user namespace does not map root of the host: no line of the map leads to uid 0."""
    lines = [line.split() for line in uid_map.splitlines()]
    return bool(lines) and all(int(outside) != 0 for _, outside, _ in lines)


def refusal(uid: int, gid: int, own: int) -> str:
    if own:
        return f"uid {uid} listens there, not root or uid {own}"
    command = f"setpriv --reuid={uid} --regid={gid} --clear-groups COMMAND"
    return f"uid {uid} listens there, not root; to use a daemon of that user, run as that user: {command}"


def _read(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
