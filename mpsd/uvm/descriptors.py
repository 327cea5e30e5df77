"""Finding another process's descriptors by what they are open on, and duplicating them.

Which process is meant is told by a pidfd, so that nothing is ever taken from a later process with the same pid.
"""

import errno
import os
from collections.abc import Callable

from mpsd.uvm.space import Unavailable
from mpsd.uvm.syscalls import pidfd_getfd

_MOST_NUMBERS = 65536  # of a process; CUDA opens its own early
MOST_FOUND = 8  # two for each VA space


class ProcessEnded(Exception):
    """Nothing of the process is left to be taken."""


def find(pid: int, is_wanted: Callable[[str], bool]) -> list[int]:
    """The numbers of its descriptors whose links are wanted, lowest first, at most MOST_FOUND.

    Raises ProcessEnded, Unavailable where mpsd may not look.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = [name for name, _ in zip(os.listdir(folder), range(_MOST_NUMBERS), strict=False)]
    except OSError as exc:
        raise explained(exc) from exc
    found = []
    for number in sorted(int(name) for name in names):
        try:
            link = os.readlink(f"{folder}/{number}")
        except OSError:
            continue  # closed meanwhile
        if is_wanted(link):
            found.append(number)
    return found[:MOST_FOUND]


def duplicate(pidfd: int, number: int) -> int | None:
    """None: it was closed meanwhile.  Raises ProcessEnded, Unavailable."""
    try:
        return pidfd_getfd(pidfd, number)
    except OSError as exc:
        if exc.errno == errno.EBADF:
            return None
        raise explained(exc) from exc


def explained(error: OSError) -> Exception:
    """What an error of either means to the operator."""
    match error.errno:
        case errno.ESRCH | errno.ENOENT:
            return ProcessEnded()
        case errno.EPERM | errno.EACCES:
            why = "it belongs to another user or user namespace, or kernel.yama.ptrace_scope forbids it; root may"
            return Unavailable(f"not permitted to duplicate the client's descriptors: {why}")
        case errno.ENOSYS:
            return Unavailable("this kernel has no pidfd_getfd: Linux 5.6 or later has")
        case errno.EMFILE | errno.ENFILE:
            return Unavailable("mpsd has no descriptor left")
        case _:
            return Unavailable(f"duplicating the client's descriptors failed: {os.strerror(error.errno or 0)}")
