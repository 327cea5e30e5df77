"""Call statx(2) through libc: the standard library lacks a binding."""

import ctypes
import os

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1
_STATX_BYTES, _STATX_MODE, _STATX_RDEV_MAJOR = 256, 28, 128
_libc = ctypes.CDLL(None, use_errno=True)


def device_number(path: str) -> tuple[int, int, int]:
    """Return file type, major and minor number of a path, without asking its file system: a user's may never answer.

    Raise OSError.
    """
    found = (ctypes.c_ubyte * _STATX_BYTES)()
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, found) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    raw = bytes(found)
    major, minor = (int.from_bytes(raw[at : at + 4], "little") for at in (_STATX_RDEV_MAJOR, _STATX_RDEV_MAJOR + 4))
    return int.from_bytes(raw[_STATX_MODE : _STATX_MODE + 2], "little") & 0o170000, major, minor
