"""The records of /dev/mpsd-fault: bytes to values, and back.  The layout is kmod/include/mpsd_fault.h's; a test compares.

No I/O.  Other major versions are refused; a record of an unknown kind only gives the number of records lost before it.
"""

import struct
import uuid
from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct

from mpsd.errors import ProtocolError
from mpsd.model.fault import TEXT_CHARACTERS, FaultClass, Observation, Source
from mpsd.model.process import ProcessId

MAJOR = 1
RECORD = struct.Struct("=HBBI7Q16siIIHH9B7x16s")
INFO = struct.Struct("=IIIIQ24s")
GET_INFO = 2 << 30 | INFO.size << 16 | ord("m") << 8 | 0xE0  # _IOR('m', 0xe0, struct mpsd_fault_info)
POLICY = struct.Struct("=IIQ")
TARGET = struct.Struct("=iIQ")
SET_POLICY = 1 << 30 | POLICY.size << 16 | ord("m") << 8 | 0xE1  # _IOW('m', 0xe1, struct mpsd_fault_policy)
EXEMPT = 1 << 30 | TARGET.size << 16 | ord("m") << 8 | 0xE2  # _IOW('m', 0xe2, struct mpsd_fault_target)
_WINDOWS, _WINDOW_BYTES = 64, 2 << 20  # as the module has them when it is loaded
_HEAD = struct.Struct("=HBB")
_LARGEST_RECORD = 4096
_LOST = 1 << 3
_INJECTED = 1 << 1
_TICK_NS = 10_000_000  # of field 22 of /proc/PID/stat: USER_HZ is 100 on every architecture with such GPUs
_ACCESSES = {1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
_CONTAINED = frozenset({1, 2})  # actions
_WHOLE_BATCH = 10  # in `why`: UVM cancels all pending faults, including stale entries and faults that it would have served
# Caused by the client's own access: invalid address, permissions, type of fault.  For other reasons UVM cancels a whole
# batch.
_OWN_REASONS = frozenset({1, 2, 3})
_POISON = 15  # a type of fault: the GPU's memory is damaged
_ACTIONS = {0: "cancelled: all clients of its server end", 1: "contained", 2: "contained, as one before it"}

_WHYS = {  # docs/abi.md has what to do about each
    1: "the policy is to report", 2: "no mapping helps this type of fault", 3: "a physical address",
    4: "beyond what the GPU can address", 5: "managed memory", 6: "something is mapped there",
    7: "all windows of the client are used", 8: "no memory for page tables", 9: "the process is exempt",
    10: "everything pending was cancelled, innocent or not", 11: "the driver or the firmware keeps its own there",
    12: "the GPU cannot", 13: "windows do not help there", 14: "an address space of several processes",
    15: "page tables could not be written", 16: "the owner of the address space is not known",
}  # fmt: skip


class RecordKind(IntEnum):
    FAULT = 1  # a fatal MMU fault, and what was done
    STOPPED = 2  # RM has stopped the client's channels, as asked; its work may still run
    GONE = 3  # its GPU address space is destroyed


class Mode(IntEnum):
    """What the module does about fatal MMU faults, of all processes of the machine."""

    OFF = 0
    REPORT = 1
    CONTAIN = 2
    CONTAIN_AND_KILL = 3

    @property
    def word(self) -> str:
        """The mode as faults.kmod_policy spells it."""
        return self.name.lower().replace("_", "-")


class Info(Struct, frozen=True):
    record_bytes: int
    ring_records: int
    driver: str


class Record(Struct, frozen=True):
    """A record.  kind: None if mpsd does not know it.  process: None if the module did not know it.

    lost: records that were overwritten before this one.
    """

    kind: RecordKind | None
    sequence: int
    monotonic_ns: int
    address: int
    gpu: str
    process: ProcessId | None
    access: str
    fault_type: int
    reason: int
    action: int
    why: int
    is_injected: bool
    lost: int
    comm: str


def parse_info(data: bytes) -> Info:
    """Parse the module's description.  Raises ProtocolError for another version."""
    major, record_bytes, ring_records, _, _, driver = INFO.unpack(data)
    if major != MAJOR:
        raise ProtocolError(
            f"the module speaks version {major} of the fault channel, mpsd {MAJOR}: they must be of one release"
        )
    if not RECORD.size <= record_bytes <= _LARGEST_RECORD:
        raise ProtocolError(f"the module's records have {record_bytes} bytes, not {RECORD.size} or some more")
    return Info(record_bytes, ring_records, _text(driver))


def policy(mode: Mode) -> bytes:
    return POLICY.pack(mode, _WINDOWS, _WINDOW_BYTES)


def target(pid: int) -> bytes:
    return TARGET.pack(pid, 0, 0)


def parse_records(data: bytes) -> Iterator[Record]:
    """Yield the records.  Raises ProtocolError at a malformed one, after those before it."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise ProtocolError(f"{len(data) - at} bytes after the last record")
        size, major, kind = _HEAD.unpack_from(data, at)
        if major != MAJOR:
            raise ProtocolError(f"a record of version {major} of the fault channel, mpsd knows {MAJOR}")
        if size < RECORD.size or size % 8 or size > len(data) - at:
            raise ProtocolError(f"a record of {size} bytes, where {RECORD.size} are the least and {len(data) - at} are there")
        yield _record(data, at, RecordKind(kind) if kind in set(RecordKind) else None)
        at += size


def is_proof(record: Record) -> bool:
    """Return whether it proves that the work of its process faulted.

    The GPU names the address space, and UVM gives the reason.
    """
    if record.kind is not RecordKind.FAULT or record.process is None:
        return False
    if record.is_injected:
        return True
    return record.why != _WHOLE_BATCH and record.reason in _OWN_REASONS and record.fault_type != _POISON


def observe(record: Record, now_ns: int) -> Observation:
    """Return the observation for a record of a known kind."""
    is_fault = record.kind is RecordKind.FAULT
    seen_ns = record.monotonic_ns if 0 < record.monotonic_ns <= now_ns else now_ns
    return Observation(
        Source.KMOD,
        seen_ns,
        _class_of(record),
        gpu=record.gpu,
        process=record.process,
        is_proof=is_proof(record),
        address=record.address if is_fault else None,
        access=record.access if is_fault else "",
        text=_describe(record)[:TEXT_CHARACTERS],
        is_contained=is_fault and record.action in _CONTAINED,
    )


def _class_of(record: Record) -> FaultClass:
    if record.kind is not RecordKind.FAULT:
        return FaultClass.UNKNOWN
    return FaultClass.DEVICE if record.fault_type == _POISON else FaultClass.MMU


def _describe(record: Record) -> str:
    who = f"pid {record.process.pid} ({record.comm})" if record.process else "a process that is not known"
    match record.kind:
        case RecordKind.FAULT:
            made_up = "made up for a test: " if record.is_injected else ""
            became = _ACTIONS.get(record.action, f"action {record.action}")
            reason = f" ({_WHYS.get(record.why, f'reason {record.why}')})" if record.why else ""
            access = record.access or "access"
            return f"{made_up}{access} at {record.address:#x} by {who}, fault type {record.fault_type}; {became}{reason}"
        case RecordKind.STOPPED:
            return f"the driver stops the channels of {who}"
        case RecordKind.GONE:
            return f"the GPU address space of {who} is gone"
        case None:
            return f"a record of {who}, of a kind that mpsd does not know"


def _record(data: bytes, at: int, kind: RecordKind | None) -> Record:
    (_, _, _, flags, sequence, monotonic_ns, _, address, _, _, start_ns, gpu_uuid, tgid, _, lost, _, _,
     _, _, _, _, access, fault_type, reason, action, why, comm) = RECORD.unpack_from(data, at)  # fmt: skip
    return Record(
        kind,
        sequence,
        monotonic_ns,
        address,
        f"GPU-{uuid.UUID(bytes=gpu_uuid)}" if any(gpu_uuid) else "",
        ProcessId(tgid, start_ns // _TICK_NS) if tgid > 0 else None,
        _ACCESSES.get(access, ""),
        fault_type,
        reason,
        action,
        why,
        bool(flags & _INJECTED),
        lost if flags & _LOST else 0,
        _text(comm),
    )


def _text(data: bytes) -> str:
    text = data.partition(b"\0")[0].decode(errors="replace")
    return "".join(each if each.isprintable() else "?" for each in text)
