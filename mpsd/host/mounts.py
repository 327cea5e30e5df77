"""What is mounted where; and where a path lies, in words that mean the same in every mount namespace and root directory.

mpsd reads this at its start alone: the kernel takes a lock for it that every user holds for long who copies a mount namespace
with many mounts, again and again.  No signal ends that wait (1.8 s were measured).
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

_MOUNTS = "/proc/self/mounts"
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # proc(5): space, tab, newline and backslash


def place_of(path: str) -> bytes:
    """Return the file system and the path within it, which need not exist; the path alone if that cannot be told.

    Processes that reach one directory by different mounts or links get the same place, and processes that reach different
    directories by the same path get different ones.  The place stays the same when the directory is removed and made again.
    """
    path = os.path.realpath(path)
    with suppress(OSError):
        mount = _mount_of(path)
        if mount is not None:
            device, root, point = mount
            root = root.removesuffix(b"//deleted")  # since the mount was made
            within = os.path.normpath(os.path.join(root, os.path.relpath(os.fsencode(path), point)))
            return b"%b:%b" % (device, within)
    return os.fsencode(path)


def mounted() -> Iterator[tuple[bytes, bytes]]:
    """Yield where each file system is mounted, and its type, in the order of the mounts.  Raises OSError.

    Users name what they mount: only a newline ends a line.  The kernel writes one in a name otherwise, as it does a space.
    """
    with open(_MOUNTS, "rb") as file:
        for line in file:
            _, point, kind, *_ = [*line.split(b" "), b"", b"", b""]
            yield _plain(point), kind


def _mount_of(path: str) -> tuple[bytes, bytes, bytes] | None:
    """Return the device, the directory that is mounted, and where.

    None for a process in a root directory to which no mount leads.  Raises OSError.
    """
    number = _mount_number(path)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            words = line.split(b" ", 5)  # number, parent, device, root, point, the rest
            if words[0] == number:
                return words[2], _plain(words[3]), _plain(words[4])
    return None


def _mount_number(path: str) -> bytes:
    """Return the number of the mount that the path leads to, or the nearest directory above that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as facts:
            return next(line.split()[1] for line in facts if line.startswith(b"mnt_id:"))
    finally:
        os.close(descriptor)


def _plain(text: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), text)
