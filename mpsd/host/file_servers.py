"""Abort a FUSE server that never answers, for which a thread of mpsd waits as it closes a file.

Only an answer, the end of that server, or an abort of the FUSE connection ends such a wait; SIGKILL does not.  mpsd aborts a
FUSE connection if a user left files there, and that user mounted it.  The uid alone is not enough: root of a container can
take any uid, and must not have the mounts aborted that the host's user with that uid has.

A thread that closes a user's file has both facts as its name, so that the next mpsd can abort the server if this one is killed.
Prose: docs/security.md, "What no boundary promises"; decision 048.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpsd.host.syscalls import file_system_of, name_thread, thread_name

FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_NAME = "{:05x}/{:08x}"  # file system, and share (UidRanges.share_of): 14 of the 15 bytes of a name
_MOST_NUMBER = 0xFFFFF  # of a file system without a device, as FUSE's: MINORMASK, linux/kdev_t.h
_LOOKS, _PAUSE_SECONDS = 20, 0.05  # a server that answers is seen without a request
_NAMED = re.compile("([0-9a-f]{5})/([0-9a-f]{8})")


@contextmanager
def closing(descriptor: int, share: int) -> Iterator[None]:
    """Have a name by which `named` knows the file system of this file and the share of its sender, while it closes."""
    number, name = file_system_of(descriptor), thread_name()
    if 0 < number <= _MOST_NUMBER and share > 0:
        name_thread(_NAME.format(number, share).encode())
    try:
        yield
    finally:
        name_thread(name)


def named(name: str) -> tuple[int, int] | None:
    """Return the file system and the share in the name of a thread; None if it has another name."""
    found = _NAMED.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def abort(numbers: Collection[int], share: int, share_of: Callable[[int], int]) -> int:
    """Abort the FUSE connections of the share, of those that have requests waiting, for which a thread waits; return how many.

    numbers: of the share's file systems.  A file system without a connection can hide which one it asks, as overlayfs does,
    which users mount too.  Then these are all that have had requests waiting at each look, for a second; this blocks so long.
    """
    silent = _waiting(_names(), share, share_of)
    found = silent.intersection(map(str, numbers))
    if silent != found and not all((FUSE_CONNECTIONS / str(each)).exists() for each in numbers):
        for _ in range(_LOOKS):
            time.sleep(_PAUSE_SECONDS)
            silent = _waiting(silent, share, share_of)
        found |= silent
    return sum(map(_abort, found))


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
