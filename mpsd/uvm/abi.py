"""The ioctls of the open-source nvidia-uvm module that mpsd uses, and the records of its event queues, as bytes.

From uvm_ioctl.h and uvm_types.h of NVIDIA's open-gpu-kernel-modules (MIT), versions 535 to 595; the same bytes work on all of
them (docs/uvm.md, "Driver versions").  No I/O.  Whatever is read here is untrusted: each index is bounded, unknown words are
kept as numbers.

    event entry, 64 bytes (V1)                               control page
    0  u8  type        3 gpu fault, 6 fatal fault            0   u32 get_ahead    written by mpsd
    1  u8  fault type                                        4   u32 get_behind   written by mpsd
    2  u8  access type                                       8   u32 put_ahead    written by the kernel
    3  u8  processor   0 is the CPU                          12  u32 put_behind   written by the kernel
    4  u8  reason      of a fatal fault                      16  u64 dropped[64]  written by the kernel; index: event type
    8  u64 address
    16 u64 time, ns, a clock of the kernel's
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FREE, INIT_TRACKER, SET_THRESHOLD, ENABLE_EVENTS, CREATE_RANGE, MAP_SPARSE = 34, 56, 57, 58, 73, 74

STATUS_NAMES = {  # nvstatuscodes.h
    0x00: "done",
    0x16: "illegal action",  # a descriptor that is no VA space: the second one, or one that is not set up yet
    0x1B: "insufficient permissions",
    0x1E: "invalid address",
    0x1F: "invalid argument",
    0x26: "invalid device",  # no context on this GPU yet, or none that can do it
    0x51: "no memory",
    0x56: "not supported",
    0x68: "address in use",
}
DONE, ILLEGAL_ACTION, INVALID_DEVICE, ADDRESS_IN_USE = 0x00, 0x16, 0x26, 0x68
UNANSWERED = 0xFFFF_FFFF  # what we write where the status comes: it stays where a driver has another layout

BUFFER_BYTES = 64  # no structure of these is longer
ENTRY_BYTES = 64
QUEUE_ENTRIES = 256  # a power of two; one place stays free
CONTROL_BYTES = 4096
GET_AHEAD, GET_BEHIND, PUT_BEHIND = 0, 1, 3  # in words of 4 bytes
DROPPED, DROPPED_COUNTERS = 2, 64  # in words of 8 bytes

GPU_FAULT_TYPE, FATAL_TYPE = 3, 6
# Fatal ones alone: managed memory makes a GPU fault of every page that moves, and each would wake mpsd and fill the queue.
ENABLED = 1 << FATAL_TYPE

_TRACKER = struct.Struct("<QQQ16sIIII")  # queue, entries, control, uuid, all processors, descriptor, status, version
_THRESHOLD = struct.Struct("<II")
_ENABLE = struct.Struct("<QI")
_RANGE = struct.Struct("<QQI")
_SPARSE = struct.Struct("<QQ16sI")
_ENTRY = struct.Struct("<BBBBB3xQQ")
_TRACKER_STATUS, _THRESHOLD_STATUS, _ENABLE_STATUS, _RANGE_STATUS, _SPARSE_STATUS, _SHORT_FREE_STATUS = 48, 4, 8, 16, 32, 8
_VERSION = 1
_UUID = re.compile(r"(?:GPU|MIG)-([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


class EventKind(StrEnum):
    FATAL = "fatal"
    GPU_FAULT = "gpu_fault"


ACCESSES = {1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
FAULT_TYPES = {
    1: "no mapping", 2: "no mapping", 3: "write to a read-only mapping", 4: "atomic access to a mapping without",
    5: "page size", 6: "beyond the limit of addresses", 7: "no address space", 8: "privileged mapping", 9: "pitch mask",
    10: "work creation", 11: "unsupported aperture", 12: "compression", 13: "unsupported kind", 14: "region", 15: "poison",
}  # fmt: skip
REASONS = {
    1: "invalid address", 2: "invalid permissions", 3: "invalid fault type", 4: "out of memory", 5: "internal error",
    6: "invalid operation",
}  # fmt: skip
POISON = 15
# What the client's own access caused.  For the other reasons the driver ends every fault of a batch, innocent ones too.
OWN_REASONS = frozenset({1, 2, 3})
_CPU = 0


@dataclass(frozen=True, slots=True)
class UvmEvent:
    """One record of a queue.  The numbers are the driver's own; fault_text and reason_text say them in words.

    access: a word of ACCESSES; empty: one that is not known.  timestamp_ns: of a kernel clock that is not CLOCK_MONOTONIC.
    """

    kind: EventKind
    fault_type: int
    access: str
    address: int
    timestamp_ns: int
    reason: int

    @property
    def is_own_doing(self) -> bool:
        """Whether it proves that the work of this client faulted, through no fault of the GPU or the driver."""
        return self.kind is EventKind.FATAL and self.reason in OWN_REASONS and self.fault_type != POISON

    @property
    def fault_text(self) -> str:
        return FAULT_TYPES.get(self.fault_type, f"fault type {self.fault_type}")

    @property
    def reason_text(self) -> str:
        return REASONS.get(self.reason, f"reason {self.reason}")


def status_text(status: int) -> str:
    if status == UNANSWERED:
        return "no answer where one was expected: a driver of another layout"
    name = STATUS_NAMES.get(status)
    return f"{name} (0x{status:x})" if name else f"status 0x{status:x}"


# -- what goes in; each buffer takes the answer too ------------------------------------------------------------------


def pack_tracker(queue_address: int, control_address: int, descriptor: int) -> bytearray:
    """V1 entries, of all processors.  The version is read by 550 alone, where the others end before it."""
    return _buffer(_TRACKER, queue_address, QUEUE_ENTRIES, control_address, b"", 1, descriptor, UNANSWERED, _VERSION)


def pack_threshold(entries: int) -> bytearray:
    return _buffer(_THRESHOLD, entries, UNANSWERED)


def pack_enable(flags: int) -> bytearray:
    return _buffer(_ENABLE, flags, UNANSWERED)


def pack_range(base: int, length: int) -> bytearray:
    """For CREATE_RANGE and FREE."""
    return _buffer(_RANGE, base, length, UNANSWERED)


def pack_sparse(base: int, length: int, gpu_uuid: bytes) -> bytearray:
    return _buffer(_SPARSE, base, length, gpu_uuid, UNANSWERED)


def _buffer(layout: struct.Struct, *values: int | bytes) -> bytearray:
    return bytearray(layout.pack(*values).ljust(BUFFER_BYTES, b"\0"))


# -- what comes back -------------------------------------------------------------------------------------------------


def tracker_status(buffer: bytearray) -> int:
    return _word(buffer, _TRACKER_STATUS)


def threshold_status(buffer: bytearray) -> int:
    return _word(buffer, _THRESHOLD_STATUS)


def enable_status(buffer: bytearray) -> int:
    return _word(buffer, _ENABLE_STATUS)


def range_status(buffer: bytearray) -> int:
    return _word(buffer, _RANGE_STATUS)


def sparse_status(buffer: bytearray) -> int:
    return _word(buffer, _SPARSE_STATUS)


def free_status(buffer: bytearray) -> int:
    """Late versions have no length there, so that the status comes in its place."""
    status = _word(buffer, _RANGE_STATUS)
    return _word(buffer, _SHORT_FREE_STATUS) if status == UNANSWERED else status


def _word(buffer: bytearray, offset: int) -> int:
    return int.from_bytes(buffer[offset : offset + 4], "little")


def parse_uuid(uuid: str) -> bytes:
    """The bytes of "GPU-xxxxxxxx-xxxx-...".  Raises ValueError."""
    match = _UUID.fullmatch(uuid)
    if match is None:
        raise ValueError(f"{uuid!r} is not the UUID of a GPU")
    return bytes.fromhex(match[1].replace("-", ""))


# -- the queue -------------------------------------------------------------------------------------------------------


def pending(get: int, put: int) -> Sequence[int]:
    """The places of the entries that wait, oldest first.  The kernel counts modulo the queue; whatever the counters hold, what
    comes back are at most QUEUE_ENTRIES - 1 places within it."""
    count = (put - get) % QUEUE_ENTRIES
    return [(get + each) % QUEUE_ENTRIES for each in range(count)]


def parse_entry(entry: bytes) -> UvmEvent | None:
    """None: of another kind, or of the CPU, whose faults hurt its own process alone.  Raises ValueError when it is short."""
    if len(entry) < _ENTRY.size:
        raise ValueError(f"an event entry of {len(entry)} bytes")
    kind, fault_type, access, processor, reason, address, timestamp_ns = _ENTRY.unpack_from(entry)
    if kind not in (GPU_FAULT_TYPE, FATAL_TYPE) or processor == _CPU:
        return None
    is_fatal = kind == FATAL_TYPE
    return UvmEvent(
        kind=EventKind.FATAL if is_fatal else EventKind.GPU_FAULT,
        fault_type=fault_type,
        access=ACCESSES.get(access, ""),
        address=address,
        timestamp_ns=timestamp_ns,
        reason=reason if is_fatal else 0,  # the same byte is the number of an engine in the other
    )
