"""Abort a FUSE server that never answers, for which a thread of mpsd waits as it closes a file.

Only an answer, the end of that server, or an abort of the FUSE connection ends such a wait; SIGKILL does not.  mpsd aborts a
FUSE connection if a user left files of it, and that user mounted it.  The uid alone is not enough: root of a container can
take any uid, and must not have the mounts aborted that the host's user with that uid has.

A thread that closes a user's file has both facts as its name, so that the next mpsd can abort the server if this one is killed.
Prose: docs/security.md, "What no boundary promises"; decision 048.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpsd.host.syscalls import file_system_of, name_thread, thread_name

FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")  # Linux, Documentation/filesystems/fuse/fuse.rst, "Control filesystem"
_NAME = "{:05x}/{:08x}"  # file system, and share (UidRanges.share_of): 14 of the 15 bytes of a name
_MOST_NUMBER = 0xFFFFF  # of a file system without a device, as FUSE's: MINORMASK, linux/kdev_t.h
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


def abort(number: int, share: int, share_of: Callable[[int], int]) -> bool:
    """Abort the FUSE connection of this file system if a user of the share mounted it, and it has requests waiting.

    Return whether it was aborted.
    """
    connection = FUSE_CONNECTIONS / str(number)
    with suppress(OSError, ValueError):  # none, or it has ended, or is not ours to abort
        if share_of(connection.stat().st_uid) == share and int((connection / "waiting").read_text()) > 0:
            (connection / "abort").write_text("1")
            return True
    return False
