"""Command lines: the bytes of one line become words, and words become a frozen request or the vendor's refusal of them.

    line     = [ name { blank word } ] [ NUL anything ]      blank: space, tab, CR, LF, VT, FF
    name     = a key of commands.COMMANDS
    word     = its meaning depends on the command; words that a command does not use are ignored
    PID, UID = the leading digits of a word (`5x` is 5), 0 without a digit

Odd cases are the vendor's, observed with driver 580 (tests/contract/vendor_580.toml).  The meaning of a pid, a device or a
limit is not known here.  Prose: docs/commands.md.
"""

import re

from msgspec import Struct

from mpsd.errors import BadRequest
from mpsd.model.quantities import parse_percent
from mpsd.model.visible_text import visible

MAX_LINE_BYTES = 4096  # the vendor's daemon crashes at 4095
_MAX_NUMBER = 2**63 - 1  # larger numbers are read as this one, as strtol(3) does
_MAX_QUIT_SECONDS = 366 * 24 * 3600  # small enough for a clock to show its end; clients/control/quit.c has the same bound
_MAX_UID = 2**32 - 2  # the next number means "no user" to the kernel
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)

UID_REQUIRED = "A user id (UID) is required to start a new server\n"
START_SERVER_USAGE = "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n"
SERVER_PID_REQUIRED = "A server PID is required\n"
INVALID_FORMAT = "Invalid command format\n"


class Rejected(BadRequest):
    """The line is not a request; str() is the whole answer to it, and `status` the exit status."""

    def __init__(self, answer: str, status: int = 0) -> None:
        super().__init__(answer)
        self.status = status


class Words(Struct, frozen=True):
    """A line split into words; every character is printable."""

    name: str
    arguments: tuple[str, ...]


class LineRequest(Struct, frozen=True, kw_only=True):
    """The request in a line; `server_pid` is the server that it names, None if it names none."""

    server_pid: int | None = None


class DeviceQuery(LineRequest, Struct, frozen=True, kw_only=True):
    is_csv: bool


class StartServer(LineRequest, Struct, frozen=True, kw_only=True):
    uid: int


class ShutdownServer(LineRequest, Struct, frozen=True, kw_only=True):
    is_forced: bool


class TerminateClient(LineRequest, Struct, frozen=True, kw_only=True):
    client_pid: int


class Quit(LineRequest, Struct, frozen=True, kw_only=True):
    timeout_seconds: float | None


class SetPercent(LineRequest, Struct, frozen=True, kw_only=True):
    """thread_percent: None if the word is not a percentage; then nothing changes."""

    thread_percent: float | None


class PinnedLimit(LineRequest, Struct, frozen=True, kw_only=True):
    """A device and a limit in the caller's words, None if the word is missing; `stray` is the word after the limit."""

    device: str | None
    value: str | None = None
    stray: str | None = None


class SetPriority(LineRequest, Struct, frozen=True, kw_only=True):
    """priority: any number; the vendor checks the caller before the number."""

    priority: int


class PassOn(LineRequest, Struct, frozen=True, kw_only=True):
    """A command that is forwarded to the vendor's daemon without being parsed."""

    line: str


class Help(LineRequest, Struct, frozen=True, kw_only=True):
    topic: str | None


def parse_words(line: bytes) -> Words:
    """Split a line.  Raises Rejected for a line that is too long."""
    if len(line) > MAX_LINE_BYTES:
        raise Rejected(f"Command of {len(line)} bytes is too long, at most {MAX_LINE_BYTES} are read\n", status=1)
    words = tuple(printable(word) for word in line.partition(b"\0")[0].split())
    return Words(words[0], words[1:]) if words else Words("", ())


def printable(raw: bytes) -> str:
    """Decode untrusted bytes; bytes that are not UTF-8, or would move a terminal's cursor, become escapes."""
    return visible(raw.decode("utf-8", "backslashreplace"))


def parse_nothing(words: tuple[str, ...]) -> LineRequest:
    return LineRequest()


def parse_server(words: tuple[str, ...]) -> LineRequest:
    return LineRequest(server_pid=_number_at(words, 0))


def parse_server_status(words: tuple[str, ...]) -> LineRequest:
    """Parse the arguments of get_server_status: the one command that distinguishes a missing pid from pid 0."""
    if not words or not _NUMBER.match(words[0]):
        raise Rejected(SERVER_PID_REQUIRED)
    return parse_server(words)


def parse_any_server(words: tuple[str, ...]) -> LineRequest:
    return LineRequest(server_pid=_number_at(words, 0) or None)


def parse_ps(words: tuple[str, ...]) -> LineRequest:
    """Parse `-p PID` or `-pPID`; any other arguments ask for every server."""
    if not words or not words[0].startswith("-p"):
        return LineRequest()
    return LineRequest(server_pid=_number(words[0][2:] or _word_at(words, 1)))


def parse_device_query(words: tuple[str, ...]) -> DeviceQuery:
    others = tuple(word for word in words if word != "--csv")
    pid = _number_at(others, 0)
    if others and not pid:
        raise Rejected(INVALID_FORMAT)
    return DeviceQuery(server_pid=pid or None, is_csv="--csv" in words)


def parse_start_server(words: tuple[str, ...]) -> StartServer:
    if len(words) >= 2 and words[0] not in ("-uid", "--uid"):
        raise Rejected(START_SERVER_USAGE)
    uid = _number_at(words, 1)
    if len(words) < 2 or words[0] != "-uid" or not _NUMBER.match(words[1]) or not 0 <= uid <= _MAX_UID:
        raise Rejected(UID_REQUIRED)
    return StartServer(uid=uid)


def parse_shutdown_server(words: tuple[str, ...]) -> ShutdownServer:
    return ShutdownServer(server_pid=_number_at(words, 0), is_forced=words[1:2] == ("-f",))


def parse_terminate_client(words: tuple[str, ...]) -> TerminateClient:
    return TerminateClient(server_pid=_number_at(words, 0), client_pid=_number_at(words, 1))


def parse_quit(words: tuple[str, ...]) -> Quit:
    """Parse `-t N` in the first place; a missing or negative N waits for ever, as without `-t`, a large one a year."""
    if len(words) < 2 or words[0] != "-t" or not _NUMBER.match(words[1]):
        return Quit(timeout_seconds=None)
    seconds = _number_at(words, 1)
    return Quit(timeout_seconds=float(min(seconds, _MAX_QUIT_SECONDS)) if seconds >= 0 else None)


def parse_default_percent(words: tuple[str, ...]) -> SetPercent:
    return SetPercent(thread_percent=parse_percent(_word_at(words, 0)))


def parse_server_percent(words: tuple[str, ...]) -> SetPercent:
    return SetPercent(server_pid=_number_at(words, 0), thread_percent=parse_percent(_word_at(words, 1)))


def parse_default_limit(words: tuple[str, ...]) -> PinnedLimit:
    return PinnedLimit(device=_word_at(words, 0), value=_word_at(words, 1), stray=_word_at(words, 2))


def parse_server_limit(words: tuple[str, ...]) -> PinnedLimit:
    return PinnedLimit(
        server_pid=_number_at(words, 0), device=_word_at(words, 1), value=_word_at(words, 2), stray=_word_at(words, 3)
    )


def parse_priority(words: tuple[str, ...]) -> SetPriority:
    return SetPriority(priority=_number_at(words, 0))


def parse_lspart(_: tuple[str, ...]) -> PassOn:
    """Every user may send it: no word that they choose reaches the vendor's daemon, which runs as root."""
    return PassOn(line="lspart")


def parse_sm_partition(words: tuple[str, ...]) -> PassOn:
    return PassOn(line=" ".join(("sm_partition", *words)))


def parse_help(words: tuple[str, ...]) -> Help:
    return Help(topic=_word_at(words, 0))


def _word_at(words: tuple[str, ...], index: int) -> str | None:
    return words[index] if index < len(words) else None


def _number_at(words: tuple[str, ...], index: int) -> int:
    return _number(_word_at(words, index))


def _number(word: str | None) -> int:
    """Parse as atoi(3), but saturate: with the vendor, too large a number wraps round to the pid of another server."""
    number = _NUMBER.match(word or "")
    return max(-_MAX_NUMBER, min(int(number[0]), _MAX_NUMBER)) if number else 0
