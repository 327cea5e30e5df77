"""The answers of the inspector, and why there is none."""

import errno
import os
import socket
from array import array

from mpsd.errors import ProtocolError
from mpsd.host import inspector_messages as wire
from mpsd.host.descriptors import close_all

_DESCRIPTOR = array("i")


class Unreadable(Exception):
    """A process could not be read in time, or its user has too many such reads in progress; the message has the reason."""


class Busy(Unreadable):
    """The inspector has no room for another child of this user."""


def check_gone(error: OSError, pid: int) -> None:
    """Raise Unreadable unless the process has ended, or mpsd may not read it."""
    if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM):
        raise Unreadable(f"pid {pid} cannot be read: {os.strerror(error.errno or 0)}") from None


def overdue(pid: int) -> Unreadable:
    return Unreadable(f"pid {pid} could not be read in time: the kernel makes readers of its memory or descriptors wait")


def receive(end: socket.socket, pid: int) -> tuple[bytes, list[int]]:
    """Return payload and descriptors.  Raises OSError, Unreadable."""
    room = socket.CMSG_LEN(wire.MOST_TAKEN * _DESCRIPTOR.itemsize)
    data, ancillary, _, _ = end.recvmsg(wire.DATAGRAM_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    taken = [each for _, _, numbers in ancillary for each in array("i", numbers)]
    if not data:
        raise overdue(pid)  # its child was killed at the deadline
    try:
        _, payload = wire.parse_answer(data)
    except ProtocolError as exc:
        close_all(taken)
        raise Unreadable(str(exc)) from None
    except OSError as exc:
        close_all(taken)
        if exc.errno == errno.EBUSY:
            raise Busy(f"pid {pid} was not read: too many reads of its user's processes have not ended") from None
        raise
    return payload, taken
