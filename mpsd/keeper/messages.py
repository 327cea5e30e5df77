"""Pack and parse the keeper's datagrams: its requests and its answers.

The specification is native/include/mpsd_keeper.h.  No sockets: descriptors are sent with the bytes.
"""

import struct
from enum import IntEnum

from msgspec import Struct

from mpsd.errors import ProtocolError

_MESSAGE = struct.Struct("=HHHHIIQQQQ64sQQ")
_ENTRY = struct.Struct("=64sQQQQ")
_STAT = struct.Struct("=IIIIIIQQQQQQQQQQQQQ")
MAJOR, MINOR = 1, 0
ID_BYTES = 64
PAGE = 64  # entries in one reply to LIST
REPLY_BYTES = _MESSAGE.size + PAGE * _ENTRY.size
_QUIET, _MORE, _REPLY = 0x0001, 0x4000, 0x8000


class KeeperOp(IntEnum):
    HELLO = 1
    PUT = 2
    GET = 3
    DROP = 4
    LIST = 5
    STAT = 6
    STOP = 7


class Status(IntEnum):
    """The statuses that mpsd reacts to; the header has the others."""

    OK = 0
    FULL = 10
    NO_ROOM = 11


class KeeperEntry(Struct, frozen=True):
    """What it holds under a name, as LIST returns it; `size` is the note that was given with it."""

    name: str
    generation: int
    size: int


class Reply(Struct, frozen=True):
    op: int
    sequence: int
    status: int
    has_more: bool
    size: int
    count: int
    name: str
    payload: bytes

    def entries(self) -> list[KeeperEntry]:
        """Return the entries of a reply to LIST.  Raise ProtocolError."""
        if self.count > PAGE or len(self.payload) != self.count * _ENTRY.size:
            raise ProtocolError(f"the keeper lists {self.count} entries in {len(self.payload)} bytes")
        fields = (_ENTRY.unpack_from(self.payload, index * _ENTRY.size) for index in range(self.count))
        return [KeeperEntry(_name(name), generation, size) for name, generation, size, _, _ in fields]

    def most_held(self) -> int:
        """Return how many descriptors it can hold, from a reply to STAT.  Raise ProtocolError."""
        return self._number(2)

    def keeper_pid(self) -> int:
        """Return its pid, from a reply to STAT.  Raise ProtocolError."""
        return self._number(0)

    def _number(self, index: int) -> int:
        if len(self.payload) != _STAT.size:
            raise ProtocolError(f"the keeper's numbers have {len(self.payload)} bytes")
        return int(_STAT.unpack(self.payload)[index])


def pack_request(
    op: KeeperOp, sequence: int, name: str = "", *, is_quiet: bool = False, generation: int = 0, size: int = 0
) -> bytes:
    """Pack a request.  is_quiet: the keeper answers only if it refuses."""
    flags = _QUIET if is_quiet else 0
    return _MESSAGE.pack(MAJOR, MINOR, op, flags, sequence, 0, generation, size, 0, 0, name.encode(), 0, 0)


def parse_reply(data: bytes) -> Reply:
    """Parse a reply.  Raise ProtocolError."""
    if len(data) < _MESSAGE.size:
        raise ProtocolError(f"the keeper answered with {len(data)} bytes")
    _, _, op, flags, sequence, status, _, size, _, count, name, _, _ = _MESSAGE.unpack_from(data)
    if not flags & _REPLY:
        raise ProtocolError("the keeper sent a message that is not a reply")
    return Reply(op, sequence, status, bool(flags & _MORE), size, count, _name(name), data[_MESSAGE.size :])


def _name(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", errors="replace")
