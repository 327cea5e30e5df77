"""Disk space reserved for files that must stay writable when the disk is full, and freed when their start is not needed.

fallocate(2) does not change the file's size here: a process that appends to the file notices nothing.  On file systems
without it (NFS, ext3) nothing changes.
"""

import os
from pathlib import Path

from mpsd.native import ffi, lib

_BLOCK_BYTES = 4096


def keep_room(path: Path, more_bytes: int, read_bytes: int = 0) -> int:
    """Reserve space as `keep_room_of` does, for the file at a path; return ENOENT if it does not exist.

    Not for a database that is open: closing any descriptor of it drops this process's locks on it, fcntl(2).
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        return exc.errno or 0
    try:
        return keep_room_of(descriptor, more_bytes, read_bytes)
    finally:
        os.close(descriptor)


def keep_room_of(descriptor: int, more_bytes: int, read_bytes: int = 0) -> int:
    """Reserve space for `more_bytes` after the file's end, and free what the first `read_bytes` occupy.

    These then read as zeros; every position in the file stays the same.  Returns 0, or the errno: ENOSPC if the disk has no
    space, EOPNOTSUPP if the file system cannot reserve.  Call it in a thread: a hung disk blocks it.
    """
    if whole := read_bytes // _BLOCK_BYTES * _BLOCK_BYTES:
        lib.fallocate(descriptor, lib.FALLOC_FL_KEEP_SIZE | lib.FALLOC_FL_PUNCH_HOLE, 0, whole)
    found = lib.fallocate(descriptor, lib.FALLOC_FL_KEEP_SIZE, os.fstat(descriptor).st_size, more_bytes)
    return int(ffi.errno) if found else 0
