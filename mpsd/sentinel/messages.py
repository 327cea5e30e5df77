"""Pack and parse the datagrams of mpsd-sentinel: requests to it and its reports.

The specification is native/include/mpsd_sentinel.h.  No sockets: descriptors are sent with the bytes.
"""

import errno
import struct
from enum import IntEnum

from msgspec import Struct

from mpsd.errors import ProtocolError

VERSION = 1
UNLESS_CONTAINED = 1  # the pid of END: a sentinel that has seen an exception does not end
_REQUEST = struct.Struct("=IIII")
_REPORT = struct.Struct("=IIIiQQIIIIQ")
REPORT_BYTES = _REPORT.size
_CUDA_NAMES = {2: "out of memory", 500: "no usable libcuda.so.1", 805: "the server refuses it", 807: "MPS is not ready"}


class SentinelOp(IntEnum):
    ADD = 1
    END = 2
    SERVER = 3


class SentinelKind(IntEnum):
    ARMED = 1
    FAULT = 2
    HOLDS = 3
    CONTAINED = 4
    FAILED = 5
    STARTED = 6


class SentinelStep(IntEnum):
    """The step at which a sentinel failed."""

    START = 1
    STOP = 2
    FIND = 3
    SESSION = 4
    EVENT = 5
    READ = 6
    RESUME = 7
    END = 8
    SHARED = 9
    SECOND = 10
    CUT_OFF = 100  # mpsd's own: the program ended while clients were there


_STEPS = {
    SentinelStep.START: "it got no CUDA context",
    SentinelStep.STOP: "its client could not be stopped",
    SentinelStep.FIND: "its client's objects were not found in the driver",
    SentinelStep.SESSION: "the driver gave it no debugger session",
    SentinelStep.EVENT: "the driver gave it no event",
    SentinelStep.READ: "the driver did not report the exception",
    SentinelStep.RESUME: "the driver did not resume the GPU",
    SentinelStep.END: "its stopped client was ended or continued by another process",
    SentinelStep.SHARED: "the SM of the exception had other warps, which would have hung",
    SentinelStep.SECOND: "after it was contained the driver reported an exception again",
    SentinelStep.CUT_OFF: "its sentinel or server ended before its clients",
}


class SentinelReport(Struct, frozen=True):
    """A report.  The header's table has the meaning of the fields for each kind."""

    kind: SentinelKind
    pid: int = 0
    status: int = 0
    time_ns: int = 0
    pc: int = 0
    warp_esr: int = 0
    global_esr: int = 0
    count: int = 0
    is_culprit: bool = False
    mapping_bytes: int = 0

    @property
    def why(self) -> str:
        """Why it failed, in words."""
        step = _STEPS.get(SentinelStep(self.count), "") if self.count in _STEPS else f"step {self.count}"
        if not self.status:
            return step
        if self.status < 0:
            return f"{step}: {errno.errorcode.get(-self.status, -self.status)}"
        number = f"CUDA error {self.status}" if self.count == SentinelStep.START else f"status {self.status:#x}"
        name = _CUDA_NAMES.get(self.status, "") if self.count == SentinelStep.START else ""
        return f"{step}: {number}{f' ({name})' if name else ''}"


def pack_request(op: SentinelOp, pid: int = 0) -> bytes:
    return _REQUEST.pack(VERSION, op, pid, 0)


def parse_report(data: bytes) -> SentinelReport:
    """Parse a report.  Raise ProtocolError."""
    if len(data) != _REPORT.size:
        raise ProtocolError(f"a sentinel reported {len(data)} bytes")
    version, kind, pid, status, time_ns, pc, warp_esr, global_esr, count, is_culprit, mapping_bytes = _REPORT.unpack(data)
    if version != VERSION:
        raise ProtocolError(f"a sentinel speaks version {version}, mpsd version {VERSION}")
    try:
        known = SentinelKind(kind)
    except ValueError:
        raise ProtocolError(f"a sentinel reported the unknown kind {kind}") from None
    return SentinelReport(
        known, pid, status, time_ns, pc, warp_esr, global_esr, count, bool(is_culprit), mapping_bytes
    )  # fmt: skip
