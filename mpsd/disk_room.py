"""Room on the disk for files that must go on being written when it is full, and given back where nobody needs it any more.

fallocate(2) without a change of the file's size: whoever appends to the file notices nothing.  File systems that cannot do it
(NFS, ext3) leave things as they were.
"""

import ctypes
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_BLOCK_BYTES = 4096
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def keep_room(path: Path, more_bytes: int, read_bytes: int = 0) -> int:
    """As `keep_room_of`, of the file at a path; ENOENT where there is none.

    Not for a database that is open: with any descriptor of it that is closed the locks of this process go, fcntl(2).
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
    """Reserve room for so many bytes behind the file's end, and free what the first `read_bytes` take up.

    They read as zeros then, and every position in the file stays what it was.  Return 0, or the errno: ENOSPC where there is no
    room, EOPNOTSUPP where the file system cannot do it.  For a thread: a disk that hangs holds it up.
    """
    if whole := read_bytes // _BLOCK_BYTES * _BLOCK_BYTES:
        _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, 0, whole)
    found = _fallocate(descriptor, _KEEP_SIZE, os.fstat(descriptor).st_size, more_bytes)
    return ctypes.get_errno() if found else 0
