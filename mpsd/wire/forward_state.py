"""Parse the head and the control line of a forward state's file; mpsd uses no other part of it.

The specification is native/include/mpsd_state.h.  The reader of the record verifies the rest (clients/c, code/state_reader.h).
"""

import struct

from msgspec import Struct

from mpsd.errors import BadRequest

MAJOR = 1
MAGIC = 0x7453706D
SLOTS = 2
LINE = 64  # bytes
MOST_BYTES = 1 << 20  # of a record
CONTROL_AT = 65536
CONTROL_BYTES = 64
CONTROL = struct.Struct("=16s16sQQ")  # marks, digests, busy_ns, since_ns; the rest is reserved
HEAD = struct.Struct("=HHIQQII")  # only readers need what comes after it


class StateHead(Struct, frozen=True):
    """generation: of the arena's writer that made it.  file_bytes: the length of the file."""

    generation: int
    file_bytes: int


class Work(Struct, frozen=True):
    """How long the writer says it has worked in its term."""

    seconds: float


def parse_control(data: bytes, now_ns: int) -> tuple[bytes, Work | None]:
    """Return the marks, and the time of work until now_ns (CLOCK_MONOTONIC); None: the writer has never reported any.

    The writer may have written anything: what began in the future counts as beginning now.  Raise BadRequest.
    """
    if len(data) < CONTROL.size:
        raise BadRequest(f"the control line of a forward state has {CONTROL_BYTES} bytes; found: {len(data)}")
    marks, _, busy_ns, since_ns = CONTROL.unpack_from(data)
    if not busy_ns and not since_ns:
        return marks, None
    present_ns = max(0, now_ns - since_ns) if since_ns else 0
    return marks, Work((busy_ns + present_ns) / 1e9)


def parse_head(data: bytes) -> StateHead:
    """Parse the head.  Raise BadRequest, which names what was found."""
    if len(data) < HEAD.size:
        raise BadRequest(f"a forward state begins with a head; found: {len(data)} bytes")
    major, minor, magic, generation, _, record_bytes, _ = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BadRequest(f"a forward state begins with {MAGIC:#x}; found: {magic:#x}")
    if major != MAJOR:
        raise BadRequest(f"a forward state of version {MAJOR} is wanted; found: {major}.{minor}")
    if not 0 < record_bytes <= MOST_BYTES:
        raise BadRequest(f"the record of a forward state has 1 to {MOST_BYTES} bytes; found: {record_bytes}")
    return StateHead(generation, file_bytes(record_bytes))


def file_bytes(record_bytes: int) -> int:
    """Return the size of the file with records of this size."""
    lines = -(-record_bytes // LINE)
    return CONTROL_AT + CONTROL_BYTES + SLOTS * lines * LINE
