"""The control side of /dev/mpsd-fault in Python: takes the ioctls that the module takes, and notes them in their order."""

import errno
import os
import struct

from mpsd.faults.sources.kmod_records import EXEMPT, GET_INFO, INFO, POLICY, RECORD, SET_POLICY, TARGET, Mode


class FakeModule:
    """told: ("exempt", pid) and ("policy", mode). refuses: an errno by an ioctl's number. full: no place for these pids."""

    def __init__(self, major: int = 1) -> None:
        self.told: list[tuple[str, int]] = []
        self.refuses: dict[int, int] = {}
        self.full: set[int] = set()
        self._major = major

    def ioctl(self, descriptor: int, number: int, argument: bytes) -> bytes:
        os.fstat(descriptor)
        return self.take(number, argument)

    def take(self, number: int, argument: bytes) -> bytes:
        if number in self.refuses:
            raise OSError(self.refuses[number], os.strerror(self.refuses[number]))
        if number == GET_INFO:
            return INFO.pack(self._major, RECORD.size, 1024, 0, 7, b"580.159.04\0")
        if number == EXEMPT:
            self._exempt(argument)
        elif number == SET_POLICY:
            self._set(argument)
        else:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return argument

    def _exempt(self, argument: bytes) -> None:
        pid, flags, address = TARGET.unpack(argument)
        if flags or pid < 0 or address:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not os.path.exists(f"/proc/{pid}"):
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if pid in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.told.append(("exempt", pid))

    def _set(self, argument: bytes) -> None:
        try:
            mode, windows, window_bytes = POLICY.unpack(argument)
        except struct.error:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from None
        is_size = 64 << 10 <= window_bytes <= 1 << 30 and not window_bytes & (window_bytes - 1)
        if mode not in set(Mode) or not 1 <= windows <= 1024 or not is_size:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.told.append(("policy", mode))

    @property
    def mode(self) -> Mode:
        """Return the mode in force; a fresh module reports."""
        return Mode(next((value for what, value in reversed(self.told) if what == "policy"), Mode.REPORT))
