"""A client's stand-in for /dev/nvidia-uvm, seen from outside as native/sim/include/uvm_space.h lays it out."""

import contextlib
import ctypes
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple, Self

from tests.native.sim_machine import Client, eventually

PIDFD_GETFD = 438
PAGE = struct.Struct("<IIIIQII")
RANGE = struct.Struct("<QQQ")
ENTRY = struct.Struct("<BBBBBBHQQ40x")
ATTACHED_AT, RANGE_COUNT_AT = 8, 24
GPU_FAULT, FATAL_FAULT = 3, 6
libc = ctypes.CDLL(None, use_errno=True)


class Entry(NamedTuple):
    event: int
    fault: int
    access: int
    address: int
    time_ns: int


class Page(NamedTuple):
    magic: int
    version: int
    attached: int
    registered: int
    dropped: int
    range_count: int
    reserved: int


def duplicate(pid: int, suffix: str) -> int:
    """Duplicate the client's descriptor whose name ends so: the same open file, not a second opening."""

    def number() -> str | None:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if link.is_symlink() and os.readlink(link).endswith(suffix):
                return link.name
        return None

    pidfd = os.pidfd_open(pid)
    try:
        got: int = libc.syscall(PIDFD_GETFD, pidfd, int(eventually(number)), 0)
    finally:
        os.close(pidfd)
    assert got >= 0, os.strerror(ctypes.get_errno())
    return got


class Space:
    """Both files of a client, held until close()."""

    def __init__(self, client: Client) -> None:
        self.descriptor = duplicate(client.pid, ".space")
        self.queue = duplicate(client.pid, ".events")
        os.set_blocking(self.queue, False)
        self.memory = mmap.mmap(self.descriptor, mmap.PAGESIZE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the address space: a mapping keeps the file open too."""
        if not self.memory.closed:
            self.memory.close()
            os.close(self.descriptor)
            os.close(self.queue)

    def page(self) -> Page:
        return Page(*PAGE.unpack_from(self.memory))

    def attach(self) -> None:
        struct.pack_into("<I", self.memory, ATTACHED_AT, 1)

    def lay(self, *ranges: tuple[int, int], is_sparse: bool = True) -> None:
        for index, (base, length) in enumerate(ranges):
            RANGE.pack_into(self.memory, PAGE.size + index * RANGE.size, base, length, int(is_sparse))
        struct.pack_into("<I", self.memory, RANGE_COUNT_AT, len(ranges))

    def fill_queue(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.queue, b"\0" * 4096)

    def entries(self) -> list[Entry]:
        """Those that are there now."""
        try:
            data = os.read(self.queue, 65536)
        except BlockingIOError:
            return []
        found = [ENTRY.unpack_from(data, at) for at in range(0, len(data), ENTRY.size)]
        return [Entry(event, fault, access, address, time_ns) for event, fault, access, _, _, _, _, address, time_ns in found]
