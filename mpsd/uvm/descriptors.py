"""Finding another process's descriptors by what they are open on, and duplicating them.

Which process is meant is told by a pidfd, so that nothing is ever taken from a later process with the same pid.  The inspector
does it, since a client can make whoever takes a descriptor wait, and whoever closes what was taken.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from mpsd.inspector import Inspector, Unreadable
from mpsd.uvm.space import Unavailable
from mpsd.wire.inspector import Pair

_MOST_NUMBERS = 65536  # of a process; CUDA opens its own early


class ProcessEnded(Exception):
    """Nothing of the process is left to be taken."""


def find(pid: int, is_wanted: Callable[[str], bool]) -> set[int]:
    """The numbers of its descriptors whose links are wanted; a client cannot make whoever reads links wait.

    Raises ProcessEnded, Unavailable where mpsd may not look.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = [name for name, _ in zip(os.listdir(folder), range(_MOST_NUMBERS), strict=False)]
    except OSError as exc:
        raise explained(exc) from exc
    found = set()
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if is_wanted(os.readlink(f"{folder}/{name}")):
                found.add(int(name))
    return found


def take(
    inspector: Inspector,
    pid: int,
    pidfd: int,
    links: Sequence[str],
    known: Sequence[Pair] = (),
    device: tuple[int, int] = (0, 0),
) -> list[tuple[int, int]]:
    """Of its descriptors with these links (of a device: with these last names), the numbers, and duplicates that are the
    caller's.  Raises ProcessEnded, Unavailable."""
    try:
        return inspector.take_now(pid, pidfd, links, known, device)
    except Unreadable as exc:
        raise Unavailable(str(exc)) from None
    except OSError as exc:
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
