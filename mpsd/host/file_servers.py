"""Abort a FUSE server that never answers, for which a thread of mpsd waits as it closes what a user sent.

Only an answer, the end of that server, or an abort of the FUSE connection ends such a wait; SIGKILL does not.  A file does not
show which server that is: an overlay hides the one below it, and an aborted server can itself wait for another one.  So mpsd
aborts all servers of this user that answer nothing for a second.

A thread that closes a user's descriptors has the user's share as its name, so that the next mpsd can abort the servers if this
one is killed.  Prose: docs/security.md, "What no boundary promises"; decision 048.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpsd.host.syscalls import name_thread, thread_name

FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_NAME = "closes/{:08x}"  # the share (UidRanges.share_of): the 15 bytes of a name
_NAMED = re.compile("closes/([0-9a-f]{8})")
_LOOKS, _PAUSE_SECONDS = 20, 0.05  # a server that answers is seen without a request


@contextmanager
def closing(share: int) -> Iterator[None]:
    """Have a name by which `named` knows the share of the user whose descriptors this thread closes; none for root's."""
    name = thread_name()
    if share > 0:
        name_thread(_NAME.format(share).encode())
    try:
        yield
    finally:
        name_thread(name)


def named(name: str) -> int | None:
    """Return the share in the name of a thread; None if it has another name."""
    found = _NAMED.fullmatch(name)
    return int(found[1], 16) if found else None


def abort(share: int, share_of: Callable[[int], int]) -> int:
    """Abort the FUSE connections of a share that have requests waiting at each look, for a second; return how many.

    It blocks so long.
    """
    silent = _waiting(_names(), share, share_of)
    for _ in range(_LOOKS):
        if not silent:
            break
        time.sleep(_PAUSE_SECONDS)
        silent = _waiting(silent, share, share_of)
    return sum(map(_abort, silent))


def _names() -> list[str]:
    with suppress(OSError):  # they are not mounted here
        return os.listdir(FUSE_CONNECTIONS)
    return []


def _waiting(names: Iterable[str], share: int, share_of: Callable[[int], int]) -> set[str]:
    """Return those of these connections that a user of the share mounted, and that have requests waiting."""
    found = set()
    for name in names:
        with suppress(OSError, ValueError):  # it has ended
            connection = FUSE_CONNECTIONS / name
            if share_of(connection.stat().st_uid) == share and int((connection / "waiting").read_text()) > 0:
                found.add(name)
    return found


def _abort(name: str) -> bool:
    with suppress(OSError):  # it has ended, or is not ours to abort
        (FUSE_CONNECTIONS / name / "abort").write_text("1")
        return True
    return False
