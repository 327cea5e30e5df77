"""A GPU that UVM's own tests make up, with a real VA space of this process on it: kmod/test/mpsd_test.h."""

import ctypes
import fcntl
import mmap
import os
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from device import Device, command, of

SPARSE_ENTRY = 0x8  # not valid, volatile: gv100 and later
PAGE_4K, PAGE_64K, PAGE_2M = 4 << 10, 64 << 10, 2 << 20
REPLAYABLE, PHYSICAL, NO_MEMORY, ABSORBED, BATCH = 1, 2, 4, 8, 16
OLD, NO_SPARSE, CHANNEL, DEFERRED = 1, 2, 4, 8
CC_VIOLATION = 16  # a FaultType that drivers know since 560
LOOK, ANSWER, UNREGISTER = 0, 1, 2

UVM_INITIALIZE = 0x30000001
UVM_CREATE_EXTERNAL_RANGE, UVM_MM_INITIALIZE = 73, 75
UVM_TEST_RANGE_TREE_DIRECTED, UVM_TEST_PAGE_TREE = 202, 210
MULTI_PROCESS_SHARING = 2  # UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE

MAP_FIXED_NOREPLACE = 0x100000  # not in Python's mmap
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class FaultType(IntEnum):
    """uvm_fault_type_t: what the GPU reports.  From PDE_SIZE on no mapping would help."""

    INVALID_PDE = 0
    INVALID_PTE = 1
    ATOMIC = 2
    WRITE = 3
    READ = 4
    PDE_SIZE = 5
    VA_LIMIT_VIOLATION = 6
    UNBOUND_INST_BLOCK = 7
    PRIV_VIOLATION = 8
    PITCH_MASK_VIOLATION = 9
    WORK_CREATION = 10
    UNSUPPORTED_APERTURE = 11
    COMPRESSION_FAILURE = 12
    UNSUPPORTED_KIND = 13
    REGION_VIOLATION = 14
    POISONED = 15


class AccessType(IntEnum):
    """uvm_fault_access_type_t."""

    PREFETCH = 0
    READ = 1
    WRITE = 2
    ATOMIC_WEAK = 3
    ATOMIC_STRONG = 4


class Reason(IntEnum):
    """UvmEventFatalReason: why UVM takes it for fatal."""

    INVALID_ADDRESS = 1
    INVALID_PERMISSIONS = 2
    INVALID_FAULT_TYPE = 3
    OUT_OF_MEMORY = 4
    INTERNAL_ERROR = 5


class Engine(IntEnum):
    GRAPHICS = 0
    HOST = 1
    COPY = 2


class _Gpu(ctypes.Structure):
    _fields_ = [("uvm_fd", ctypes.c_int32), *of(ctypes.c_uint32, "number", "mig_plus_one", "flags")]


class Access(ctypes.Structure):
    _fields_ = [
        *of(ctypes.c_uint64, "address", "gpu_ns", "took_ns"),
        ("flags", ctypes.c_uint32),
        *of(ctypes.c_uint16, "channel", "client_id"),
        *of(ctypes.c_uint8, "ve_id", "gpc_id", "client_type", "engine_type", "access_type", "fault_type", "reason", "reserved"),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), *of(ctypes.c_uint32, "page_bytes", "is_there"), ("value", ctypes.c_uint64)]


class _Mapping(ctypes.Structure):
    _fields_ = [*of(ctypes.c_uint64, "address", "bytes"), *of(ctypes.c_uint32, "page_bytes", "reserved")]


class ChannelState(ctypes.Structure):
    _fields_ = of(ctypes.c_uint32, "act", "is_bound", "stops", "has_answered")


assert [ctypes.sizeof(each) for each in (_Gpu, Access, _Entry, _Mapping, ChannelState)] == [16, 40, 24, 24, 16]

GPU = command(1, 0xF0, _Gpu)
ACCESS = command(3, 0xF1, Access)
ENTRY = command(3, 0xF2, _Entry)
MAP = command(1, 0xF3, _Mapping)
UNMAP = command(1, 0xF4, _Mapping)
CHANNEL_ACT = command(3, 0xF5, ChannelState)


def open_uvm_device() -> int:
    """Open the device node, and make it if it is missing: the guest has no udev."""
    path = Path("/dev/nvidia-uvm")
    if not path.exists():
        (major,) = re.findall(r"^ *(\d+) nvidia-uvm$", Path("/proc/devices").read_text(), re.MULTILINE)
        os.mknod(path, 0o600 | 0o020000, os.makedev(int(major), 0))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class VaSpace:
    """A VA space of UVM's as CUDA makes it: a descriptor for it, and one that ends it with the process's memory."""

    def __init__(self, flags: int = 0, has_mm: bool = True) -> None:
        self._managed: list[tuple[int, int]] = []
        self.fd = open_uvm_device()
        self.check(UVM_INITIALIZE, flags.to_bytes(8, "little") + bytes(8), 8)
        self.mm_fd = -1
        if has_mm:
            self.mm_fd = open_uvm_device()
            asked = bytearray(self.fd.to_bytes(4, "little") + bytes(4))
            fcntl.ioctl(self.mm_fd, UVM_MM_INITIALIZE, asked)
            assert not any(asked[4:]), f"UVM_MM_INITIALIZE: {asked[4:].hex()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._managed:
            LIBC.munmap(*self._managed.pop())
        for fd in (self.mm_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.mm_fd = -1

    def ask(self, number: int, parameters: bytes, status_at: int) -> int:
        """An ioctl of UVM's; its NV_STATUS."""
        asked = bytearray(parameters)
        fcntl.ioctl(self.fd, number, asked)
        return int.from_bytes(asked[status_at : status_at + 4], "little")

    def check(self, number: int, parameters: bytes, status_at: int) -> None:
        status = self.ask(number, parameters, status_at)
        assert status == 0, f"ioctl {number}: NV_STATUS {status:#x}"

    def reserve(self, address: int, size: int) -> None:
        """Do as cuMemAddressReserve: make an external range with nothing mapped in it."""
        self.check(UVM_CREATE_EXTERNAL_RANGE, address.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes(8), 16)

    def unmanage(self) -> None:
        """Unmap the managed memory that was mapped last: UVM takes the VA space's lock for writing, below mmap_lock."""
        LIBC.munmap(*self._managed.pop())

    def manage(self, address: int, size: int) -> None:
        """Make managed memory: UVM makes a range of each mapping of its device. It goes with the VA space."""
        flags = mmap.MAP_SHARED | MAP_FIXED_NOREPLACE  # UVM's offsets are its addresses
        found = LIBC.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, self.fd, address)
        assert found == address, os.strerror(ctypes.get_errno())
        self._managed.append((address, size))


@dataclass(frozen=True, slots=True)
class Outcome:
    absorbed: bool
    took_ns: int


class FakeGpu:
    """One made-up GPU; guards its descriptor.  Closing it is the end of the client's GPU VA space."""

    def __init__(self, device: Device, va_space: VaSpace, number: int = 0, mig_plus_one: int = 0, flags: int = 0) -> None:
        self.fd = device.ask(GPU, _Gpu(va_space.fd, number, mig_plus_one, flags))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def access(
        self,
        address: int,
        fault_type: int = FaultType.INVALID_PDE,
        access_type: int = AccessType.WRITE,
        reason: int = Reason.INVALID_ADDRESS,
        flags: int = REPLAYABLE,
        **packet: int,
    ) -> Outcome:
        """A fatal fault.  packet: other fields of Access."""
        kind = {"access_type": access_type, "fault_type": fault_type, "reason": reason}
        asked = Access(address=address, flags=flags, **kind, **packet)
        fcntl.ioctl(self.fd, ACCESS, asked)
        return Outcome(bool(asked.flags & ABSORBED), asked.took_ns)

    def entry(self, address: int, page_bytes: int = PAGE_64K) -> int | None:
        """What the page tables hold; None: no table there."""
        asked = _Entry(address, page_bytes)
        fcntl.ioctl(self.fd, ENTRY, asked)
        return asked.value if asked.is_there else None

    def is_sparse(self, start: int, size: int, page_bytes: int = PAGE_64K) -> bool:
        """Whether every entry of [start, start + size) is."""
        return all(self.entry(at, page_bytes) == SPARSE_ENTRY for at in range(start, start + size, page_bytes))

    def channel(self, act: int = LOOK) -> ChannelState:
        """Its channel, where it was made with one: let RM answer who stops it, unregister it, or just look."""
        asked = ChannelState(act)
        fcntl.ioctl(self.fd, CHANNEL_ACT, asked)
        return asked

    def map(self, address: int, size: int, page_bytes: int = PAGE_2M) -> None:
        """Read-only memory inside a reserved range, as cuMemMap and cuMemSetAccess make it."""
        fcntl.ioctl(self.fd, MAP, _Mapping(address, size, page_bytes))

    def unmap(self, address: int) -> None:
        fcntl.ioctl(self.fd, UNMAP, _Mapping(address))
