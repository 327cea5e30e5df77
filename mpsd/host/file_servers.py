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

from mpsd.host.cached_names import cached_numbers, open_cached
from mpsd.host.syscalls import name_thread, thread_name

FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_NAME = "closes/{:08x}"  # the share (UidRanges.share_of): the 15 bytes of a name
_NAMED = re.compile("closes/([0-9a-f]{8})")
_END = 1 << 20  # a connection's name is the device number of the mount: 20 bits
_LOOKS, _PAUSE_SECONDS = 20, 0.05  # a server that answers is seen without a request


@contextmanager
def closing(share: int) -> Iterator[None]:
    """Have a name by which `named` knows for which share this thread closes descriptors; no other name for root's."""
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

    It blocks so long, and not for users who hold the directory: it looks up only names that the kernel has cached.
    """
    try:
        connections = os.open(FUSE_CONNECTIONS, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # not mounted here
        return 0
    try:
        silent = _waiting(connections, cached_numbers(connections, _END), share, share_of)
        for _ in range(_LOOKS):
            if not silent:
                break
            time.sleep(_PAUSE_SECONDS)
            silent = _waiting(connections, silent, share, share_of)
        return sum(_abort(connections, each) for each in silent)
    finally:
        os.close(connections)


def _waiting(connections: int, numbers: Iterable[int], share: int, share_of: Callable[[int], int]) -> set[int]:
    """Return those of these connections that a user of the share mounted, and that have requests waiting."""
    found = set()
    for number in numbers:
        with suppress(OSError, ValueError), _opened(connections, f"{number}/waiting", os.O_RDONLY) as file:  # or it has ended
            if share_of(os.fstat(file).st_uid) == share and int(os.read(file, 32)) > 0:
                found.add(number)
    return found


def _abort(connections: int, number: int) -> bool:
    with suppress(OSError), _opened(connections, f"{number}/abort", os.O_WRONLY) as file:  # or it has ended
        os.write(file, b"1")
        return True
    return False


@contextmanager
def _opened(connections: int, name: str, flags: int) -> Iterator[int]:
    file = open_cached(connections, name, flags)
    try:
        yield file
    finally:
        os.close(file)
