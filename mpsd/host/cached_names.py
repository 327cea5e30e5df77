"""Find and open files by names that the kernel has cached: that needs no lock of their directory, which users can hold."""

import errno
import os

from mpsd.native import ffi, lib


def open_cached(directory: int, name: str, flags: int) -> int:
    """Open a file below an open directory; raises BlockingIOError if its name is not cached, and other OSErrors.

    Before Linux 5.12 it can wait for the directory.
    """
    fd = lib.mpsd_cached_open(directory, os.fsencode(name), flags)
    if not _is_unknown(fd):
        return _checked(fd)
    return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)


def cached_numbers(directory: int, end: int) -> list[int]:
    """Return the subdirectories of an open directory that have numbers for names, less than `end`.

    Before Linux 5.12 it can wait for the directory.  Raises OSError.
    """
    most = os.fstat(directory).st_nlink - 2  # the directory itself, and its name
    if most <= 0:
        return []
    found = ffi.new("uint32_t[]", most)
    count = lib.mpsd_cached_numbers(directory, end, found, most)
    if not _is_unknown(count):
        return list(found[0 : _checked(count)])
    return [int(each) for each in os.listdir(directory) if each.isdecimal()]


def _is_unknown(result: int) -> bool:
    """Return whether the kernel does not know RESOLVE_CACHED of openat2(2)."""
    return result in (-errno.EINVAL, -errno.ENOSYS)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
