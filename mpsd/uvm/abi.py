"""Pack and parse the ioctls of the open-source nvidia-uvm module that mpsd uses, and the records of its event queues.

native/include/mpsd_uvm.h has the layouts; this file has mpsd's use of them.  No I/O.  All input is untrusted: each index is
bounded, unknown codes are kept as numbers.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from mpsd.native import ffi, lib

FREE: int = lib.MPSD_UVM_FREE
INIT_TRACKER: int = lib.MPSD_UVM_TOOLS_INIT_TRACKER
SET_THRESHOLD: int = lib.MPSD_UVM_TOOLS_SET_THRESHOLD
ENABLE_EVENTS: int = lib.MPSD_UVM_TOOLS_ENABLE_EVENTS
CREATE_RANGE: int = lib.MPSD_UVM_CREATE_EXTERNAL_RANGE
MAP_SPARSE: int = lib.MPSD_UVM_MAP_EXTERNAL_SPARSE

STATUS_NAMES = {  # nvstatuscodes.h
    0x00: "done",
    0x16: "illegal action",  # a descriptor that is not a VA space: the second one, or one that is not set up yet
    0x1B: "insufficient permissions",
    0x1E: "invalid address",
    0x1F: "invalid argument",
    0x26: "invalid device",  # the GPU has no context yet, or no suitable one
    0x51: "no memory",
    0x56: "not supported",
    0x68: "address in use",
}
DONE: int = lib.MPSD_UVM_DONE
ILLEGAL_ACTION: int = lib.MPSD_UVM_ILLEGAL_ACTION
INVALID_DEVICE: int = lib.MPSD_UVM_INVALID_DEVICE
ADDRESS_IN_USE: int = lib.MPSD_UVM_ADDRESS_IN_USE
UNANSWERED: int = lib.MPSD_UVM_UNANSWERED  # preset in place of the status: it stays if a driver has another layout


def _offset(structure: str, field: str, unit: int = 1) -> int:
    found: int = ffi.offsetof(f"struct mpsd_uvm_{structure}", field)
    return found // unit


BUFFER_BYTES: int = lib.MPSD_UVM_ARGUMENT_BYTES
ENTRY_BYTES: int = ffi.sizeof("struct mpsd_uvm_entry")
QUEUE_ENTRIES = 256  # a power of two; one place stays free
CONTROL_BYTES = 4096  # a page
GET_AHEAD, GET_BEHIND, PUT_BEHIND = (_offset("control", name, 4) for name in ("get_ahead", "get_behind", "put_behind"))
DROPPED = _offset("control", "dropped", 8)  # in words of 8 bytes; the offsets above in words of 4
DROPPED_COUNTERS: int = lib.MPSD_UVM_DROPPED_COUNTERS

GPU_FAULT_TYPE: int = lib.MPSD_UVM_EVENT_GPU_FAULT
FATAL_TYPE: int = lib.MPSD_UVM_EVENT_FATAL_FAULT
# Only fatal ones: managed memory makes a GPU fault of every page that moves, and each would wake mpsd and fill the queue.
ENABLED = 1 << FATAL_TYPE
ENABLED_WITH_SERVED = ENABLED | 1 << GPU_FAULT_TYPE  # for a client with guards that report accesses

_SHORT_FREE_STATUS = _offset("range", "length")  # the offset of FREE's status in versions without a length
_ENTRY_HEAD_BYTES = _offset("entry", "rest")  # the part that is read
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
POISON: int = lib.MPSD_UVM_FAULT_POISON
# Caused by the client's own access.  For the other reasons the driver ends every fault of a batch, innocent ones too.
OWN_REASONS = frozenset({1, 2, 3})
_CPU: int = lib.MPSD_UVM_PROCESSOR_CPU


class UvmEvent(Struct, frozen=True):
    """One record of a queue.  The numbers are the driver's own; fault_text and reason_text give their meanings.

    access: a word of ACCESSES; empty if unknown.  timestamp_ns: of a kernel clock that is not CLOCK_MONOTONIC.
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


# -- requests; each buffer takes the answer too ----------------------------------------------------------------------


def pack_tracker(queue_address: int, control_address: int, descriptor: int) -> bytearray:
    """Pack a tracker with V1 entries, of all processors.  Only 550 reads the version; the others end before it."""
    return _buffer(
        "tracker",
        queue=queue_address,
        entries=QUEUE_ENTRIES,
        control=control_address,
        all_processors=1,
        descriptor=descriptor,
        version=lib.MPSD_UVM_TRACKER_VERSION,
    )


def pack_threshold(entries: int) -> bytearray:
    return _buffer("threshold", entries=entries)


def pack_enable(flags: int) -> bytearray:
    return _buffer("events", flags=flags)


def pack_range(base: int, length: int) -> bytearray:
    """Pack a range for CREATE_RANGE and FREE."""
    return _buffer("range", base=base, length=length)


def pack_sparse(base: int, length: int, gpu_uuid: bytes) -> bytearray:
    return _buffer("sparse", base=base, length=length, gpu_uuid=gpu_uuid)


def _buffer(structure: str, **values: int | bytes) -> bytearray:
    """Return a buffer whose status is UNANSWERED."""
    made = ffi.new(f"struct mpsd_uvm_{structure} *", {"status": UNANSWERED, **values})
    return bytearray(bytes(ffi.buffer(made)).ljust(BUFFER_BYTES, b"\0"))


# -- answers ---------------------------------------------------------------------------------------------------------


def tracker_status(buffer: bytearray) -> int:
    return _status(buffer, "tracker")


def threshold_status(buffer: bytearray) -> int:
    return _status(buffer, "threshold")


def enable_status(buffer: bytearray) -> int:
    return _status(buffer, "events")


def range_status(buffer: bytearray) -> int:
    return _status(buffer, "range")


def sparse_status(buffer: bytearray) -> int:
    return _status(buffer, "sparse")


def free_status(buffer: bytearray) -> int:
    """Return the status of FREE: late versions have no length, and their status is in its place."""
    status = _status(buffer, "range")
    return _word(buffer, _SHORT_FREE_STATUS) if status == UNANSWERED else status


def _status(buffer: bytearray, structure: str) -> int:
    return _word(buffer, _offset(structure, "status"))


def _word(buffer: bytearray, offset: int) -> int:
    return int.from_bytes(buffer[offset : offset + 4], "little")


def parse_uuid(uuid: str) -> bytes:
    """Return the bytes of "GPU-xxxxxxxx-xxxx-...".  Raise ValueError."""
    match = _UUID.fullmatch(uuid)
    if match is None:
        raise ValueError(f"{uuid!r} is not the UUID of a GPU")
    return bytes.fromhex(match[1].replace("-", ""))


# -- the queue -------------------------------------------------------------------------------------------------------


def pending(get: int, put: int) -> Sequence[int]:
    """Return the places of the pending entries, oldest first.

    The kernel counts modulo the queue. For any values of the counters, at most QUEUE_ENTRIES - 1 places within the queue are
    returned.
    """
    count = (put - get) % QUEUE_ENTRIES
    return [(get + each) % QUEUE_ENTRIES for each in range(count)]


def parse_entry(entry: bytes) -> UvmEvent | None:
    """Parse an entry; return None for another kind, or for the CPU, whose faults concern only its own process.

    Raise ValueError if it is too short.
    """
    if len(entry) < _ENTRY_HEAD_BYTES:
        raise ValueError(f"an event entry of {len(entry)} bytes")
    head: Any = ffi.new("struct mpsd_uvm_entry *")
    ffi.memmove(head, entry, min(len(entry), ENTRY_BYTES))
    if head.type not in (GPU_FAULT_TYPE, FATAL_TYPE) or head.processor == _CPU:
        return None
    is_fatal = head.type == FATAL_TYPE
    return UvmEvent(
        kind=EventKind.FATAL if is_fatal else EventKind.GPU_FAULT,
        fault_type=head.fault_type,
        access=ACCESSES.get(head.access, ""),
        address=head.address,
        timestamp_ns=head.time_ns,
        reason=head.reason if is_fatal else 0,  # in the other kind the same byte is the number of an engine
    )
