"""The type of a file by statx(2), from what the kernel has cached: the file system of a user may never answer.  And for a
thread: a table of descriptors of its own, and a name."""

import errno
import os
import stat
from typing import Any

from mpsd.native import ffi, lib


def device_number(path: str) -> tuple[int, int, int]:
    """Return file type, major and minor number of a path, without asking its file system.  Raises OSError."""
    found = _statx(lib.AT_FDCWD, os.fsencode(path), 0)
    if found is None:
        raise OSError(ffi.errno, os.strerror(ffi.errno), path)
    return stat.S_IFMT(found.stx_mode), found.stx_rdev_major, found.stx_rdev_minor


def type_of(descriptor: int) -> int:
    """Return the type of an open file, as in st_mode, without asking its file system; 0 if the kernel has not cached it."""
    return device_of(descriptor)[0]


def device_of(descriptor: int) -> tuple[int, int, int]:
    """Return type, major and minor number of an open file, without asking its file system; zeros if they are not cached.

    A FUSE mount for its user alone shows other users nothing: S_IFREG, since close(2) asks its file server all the same.
    """
    found = _statx(descriptor, b"", lib.AT_EMPTY_PATH)
    if found is None:
        return (stat.S_IFREG if ffi.errno == errno.EACCES else 0), 0, 0
    return stat.S_IFMT(found.stx_mode), found.stx_rdev_major, found.stx_rdev_minor


def is_on_tmpfs(descriptor: int) -> bool:
    """Return whether an open file is on a tmpfs.  It asks the file system, which must not be a user's.  Raises OSError."""
    found = ffi.new("struct statfs *")
    if lib.fstatfs(descriptor, found):
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return bool(found.f_type == lib.TMPFS_MAGIC)


def leave_descriptor_table() -> None:
    """Give this thread a copy of the table of descriptors: nothing else sees what it opens, or closes.  Raise OSError."""
    if lib.unshare(lib.CLONE_FILES):
        raise OSError(ffi.errno, os.strerror(ffi.errno))


def thread_name() -> bytes:
    """Return the name of this thread."""
    name = ffi.new("char[16]")
    lib.prctl(lib.PR_GET_NAME, int(ffi.cast("uintptr_t", name)), 0, 0, 0)
    return bytes(ffi.string(name))


def name_thread(name: bytes) -> None:
    """Name this thread, with 15 bytes at most: /proc shows the name, also after SIGKILL, until the thread has ended."""
    text = ffi.new("char[]", name)
    lib.prctl(lib.PR_SET_NAME, int(ffi.cast("uintptr_t", text)), 0, 0, 0)


def _statx(directory: int, path: bytes, flags: int) -> Any:
    """Return the struct statx, or None, and the reason in ffi.errno."""
    found = ffi.new("struct statx *")
    return None if lib.statx(directory, path, flags | lib.AT_STATX_DONT_SYNC, lib.STATX_TYPE, found) else found
