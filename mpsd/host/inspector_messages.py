"""Pack and parse the inspector's datagrams: its requests and its answers.

The specification is native/include/mpsd_inspector.h.  No sockets: descriptors are sent with the bytes.
"""

import errno
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from mpsd.errors import ProtocolError

VERSION = 1
MOST_PAIRS = 64
MOST_TAKEN = 8
DATAGRAM_BYTES = 65536
_REQUEST = struct.Struct("=IIIIIIIIII")
_PAIR = struct.Struct("=iiI")
_ANSWER = struct.Struct("=iI")
_NUMBER = struct.Struct("=i")
_FILE = struct.Struct("=QQ")
_FREEZER = struct.Struct("=QII")
_SPACE = struct.Struct("=Q")


class InspectorOp(IntEnum):
    PING = 0
    FACTS = 1
    MAPS = 2
    SAME = 3
    TAKE = 4
    STAT = 5
    FILE = 6
    SPACES = 7
    FIND = 8
    READER = 9
    RUN = 10
    CGROUP = 11
    FROZEN = 12
    FREEZER = 13
    FREEZE = 14
    THAW = 15
    PROCESSES = 16
    PATHS = 17
    TEXT = 18
    CHILDREN = 19
    THREADS_OF = 20


SAME_USER = 0xFFFFFFFF  # of RUN: the program runs as mpsd's user


class Same(IntEnum):
    """Whether two descriptors are one open file; UNKNOWN: the kernel cannot decide."""

    OTHER = 0
    IS_SAME = 1
    UNKNOWN = 2


class Frozen(IntEnum):
    """Whether a process is in a frozen cgroup; MAYBE: mpsd cannot look, as at a path that is too long."""

    NO = 0
    YES = 1
    MAYBE = 2


class Pair(Struct, frozen=True):
    """A descriptor of mpsd's, and one of another process."""

    own: int
    number: int
    pid: int


class StartFacts(Struct, frozen=True):
    """How a process was started.  program: the first argument's base name.  variables: the requested ones.

    cgroups: their paths, which another read finds; None: not known.
    """

    program: str
    variables: Mapping[str, str]
    cgroups: tuple[str, ...] | None = None


class LinkedFile(Struct, frozen=True):
    """What a link of a process leads to.  path: as the kernel shows it.  identity: device and inode; None if not known."""

    path: str
    identity: tuple[int, int] | None


class FreezerLook(Struct, frozen=True):
    """A cgroup: the directory's inode, whether its freeze is asked for, and whether all its processes are frozen."""

    inode: int
    is_asked: bool
    is_frozen: bool


class CgroupLook(Struct, frozen=True):
    """A process's cgroups: the contents of /proc/PID/cgroup, empty for one that has gone.

    stat: the contents of /proc/PID/task/PID/stat; cgroup was the same before and after that.
    """

    text: str = ""
    stat: bytes = b""


class Question(Struct, frozen=True):
    """device: major and minor number of a device, or 0, 0.  words: names of variables, or links."""

    op: InspectorOp
    pid: int = 0
    words: Sequence[str] = ()
    pairs: Sequence[Pair] = ()
    device: tuple[int, int] = (0, 0)


def pack_question(question: Question, uid: int, deadline_ms: int, asker: int) -> bytes:
    """Pack a request.

    uid: the user that the read counts against, or of the program.  asker: the process with the pairs' `own` descriptors.
    """
    major, minor = question.device
    head = _REQUEST.pack(VERSION, question.op, question.pid, uid, deadline_ms, asker, major, minor, len(question.pairs), 0)
    pairs = b"".join(_PAIR.pack(each.own, each.number, each.pid) for each in question.pairs)
    return head + pairs + b"".join(word.encode(errors="surrogateescape") + b"\0" for word in question.words)


def parse_answer(data: bytes) -> tuple[int, bytes]:
    """Return the count and the payload.  Raise OSError with the inspector's errno, or ProtocolError."""
    if len(data) < _ANSWER.size:
        raise ProtocolError(f"the inspector's answer has {len(data)} bytes, and {_ANSWER.size} or more were expected")
    status, count = _ANSWER.unpack_from(data)
    if status:
        raise OSError(-status, errno.errorcode.get(-status, str(status)))
    return count, data[_ANSWER.size :]


def parse_facts(payload: bytes) -> StartFacts:
    """Parse the facts.  If the environment has a name twice, the first counts, as for getenv(3)."""
    program, *entries = payload.removesuffix(b"\0").split(b"\0")
    variables: dict[str, str] = {}
    for entry in entries:
        name, _, value = entry.decode(errors="replace").partition("=")
        variables.setdefault(name, value)
    return StartFacts(program.rpartition(b"/")[2].decode(errors="replace"), variables)


def parse_same(payload: bytes) -> list[Same]:
    return [Same(byte) for byte in payload]


def parse_frozen(payload: bytes) -> list[Frozen]:
    return [Frozen(byte) for byte in payload]


def parse_freezer(payload: bytes) -> FreezerLook:
    """Parse the answer to FREEZER.  Raise ProtocolError."""
    if len(payload) != _FREEZER.size:
        raise ProtocolError(f"the inspector showed a cgroup in {len(payload)} bytes; {_FREEZER.size} were expected")
    inode, is_asked, is_frozen = _FREEZER.unpack(payload)
    return FreezerLook(inode, bool(is_asked), bool(is_frozen))


def parse_numbers(payload: bytes) -> list[int]:
    """Parse the answer to FIND, PROCESSES, CHILDREN or THREADS_OF.  Raise ProtocolError."""
    if len(payload) % _NUMBER.size:
        raise ProtocolError(f"the inspector sent numbers in {len(payload)} bytes, which is no multiple of {_NUMBER.size}")
    return [number for (number,) in _NUMBER.iter_unpack(payload)]


def parse_linked_file(payload: bytes) -> LinkedFile:
    """Parse the answer to FILE.  Raise ProtocolError."""
    if len(payload) <= _FILE.size:
        raise ProtocolError(f"the inspector named a file in {len(payload)} bytes; more than {_FILE.size} were expected")
    device, inode = _FILE.unpack_from(payload)
    return LinkedFile(payload[_FILE.size :].decode(errors="surrogateescape"), (device, inode) if inode else None)


def parse_cgroup(payload: bytes) -> CgroupLook:
    text, _, stat = payload.partition(b"\0")
    return CgroupLook(text.decode(errors="backslashreplace"), stat)


def parse_cgroups(payload: bytes) -> list[str | None]:
    """Return each process's cgroups; None for one that cannot be read."""
    texts = [text.decode(errors="backslashreplace") for text in payload.split(b"\0")[:-1]]
    return [None if text == "-" else text for text in texts]


def parse_spaces(payload: bytes) -> tuple[int, ...]:
    """Parse the numbers of namespaces.  Raise ProtocolError."""
    if len(payload) % _SPACE.size:
        raise ProtocolError(f"the inspector sent numbers in {len(payload)} bytes, which is no multiple of {_SPACE.size}")
    return tuple(number for (number,) in _SPACE.iter_unpack(payload))
