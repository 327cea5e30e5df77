"""System calls for which the standard library has no binding, through libc: pidfd_getfd(2), kcmp(2), statx(2)."""

import ctypes
import errno
import os
import platform

_PIDFD_GETFD = 438  # on every architecture
_KCMP = {"x86_64": 312, "aarch64": 272, "ppc64le": 354}.get(platform.machine())
_KCMP_FILE = 0
_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1
_STATX_BYTES, _STATX_MODE, _STATX_RDEV_MAJOR = 256, 28, 128
_libc = ctypes.CDLL(None, use_errno=True)


def pidfd_getfd(pidfd: int, number: int) -> int:
    """A duplicate of another process's descriptor: the same open file.  Close-on-exec.  Raises OSError."""
    found = int(_libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found


def is_same_file(descriptor: int, pid: int, number: int) -> bool | None:
    """Whether this process's `descriptor` and that one's `number` are one open file.  None where the kernel does not tell."""
    if _KCMP is None:
        return None
    found = int(_libc.syscall(_KCMP, os.getpid(), pid, _KCMP_FILE, ctypes.c_ulong(descriptor), ctypes.c_ulong(number)))
    if found < 0 and ctypes.get_errno() not in (errno.EBADF, errno.ESRCH):
        return None
    return found == 0


def device_number(path: str) -> tuple[int, int, int]:
    """File type, major and minor of what a path leads to, without asking a file system: one that a user serves may never
    answer.  Raises OSError."""
    found = (ctypes.c_ubyte * _STATX_BYTES)()
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, found) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    raw = bytes(found)
    major, minor = (int.from_bytes(raw[at : at + 4], "little") for at in (_STATX_RDEV_MAJOR, _STATX_RDEV_MAJOR + 4))
    return int.from_bytes(raw[_STATX_MODE : _STATX_MODE + 2], "little") & 0o170000, major, minor
