"""Find another process's descriptors by what they are open on, and duplicate them.

A pidfd identifies the process, so that nothing is ever taken from a later process with the same pid.  The inspector does the
work, since a client can delay the process that takes a descriptor, and the process that closes it.
"""

import errno
import os
from collections.abc import Sequence

from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import Pair
from mpsd.uvm.space import Unavailable


class ProcessEnded(Exception):
    """The process has ended, and its descriptors with it."""


def find(pid: int, links: Sequence[str]) -> set[int]:
    """Return the numbers of the descriptors that it has with these links, or with links of these last names.

    Raise ProcessEnded, Unavailable if mpsd may not look, or Unreadable, after which another attempt may succeed.
    """
    try:
        return processes.numbers(pid, links)
    except OSError as exc:
        raise explained(exc) from exc


def take(
    inspector: Inspector,
    pid: int,
    pidfd: int,
    links: Sequence[str],
    known: Sequence[Pair] = (),
    device: tuple[int, int] = (0, 0),
) -> list[tuple[int, int]]:
    """Duplicate its descriptors with these links (of a device: with these last names); return numbers and duplicates.

    The duplicates are the caller's.  Raise ProcessEnded, Unavailable, or Unreadable, after which another attempt may succeed.
    """
    try:
        return inspector.take_now(pid, pidfd, links, known, device)
    except OSError as exc:
        raise explained(exc) from exc


def explained(error: OSError) -> Exception:
    """Convert an error of `find` or `take` to an exception with its meaning for the operator."""
    match error.errno:
        case errno.ESRCH | errno.ENOENT:
            return ProcessEnded()
        case errno.EPERM | errno.EACCES:
            why = "it belongs to another user or user namespace, or kernel.yama.ptrace_scope forbids it; root may"
            return Unavailable(f"not permitted to duplicate the client's descriptors: {why}")
        case errno.ENOSYS:
            return Unavailable("this kernel has no pidfd_getfd, which needs Linux 5.6")
        case errno.ETIMEDOUT | errno.EBUSY | errno.E2BIG:  # later it may have fewer, or its user's time be there again
            return Unreadable("the client's descriptors were not listed in time")
        case errno.EMFILE | errno.ENFILE:
            return Unavailable("mpsd has no descriptor left")
        case _:
            return Unavailable(f"duplicating the client's descriptors failed: {os.strerror(error.errno or 0)}")
