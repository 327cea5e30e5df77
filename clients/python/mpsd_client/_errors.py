"""The errors between a program and mpsd."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Stable numbers; mpsd's docs/errors.md explains each."""

    BAD_REQUEST = 1
    NOT_ALLOWED = 2
    NO_SUCH_SERVER = 3
    NO_SUCH_CLIENT = 4
    NO_SUCH_DEVICE = 5
    VENDOR_FAILED = 6
    TOO_MANY = 7
    STOPPING = 8
    BAD_CONFIGURATION = 9
    UNUSABLE_PATH = 10
    ALREADY_RUNNING = 11
    PROTOCOL = 12
    KEEPER_FAILED = 13
    NO_SUCH_LEASE = 14
    NO_SUCH_DOMAIN = 15
    NO_ROOM = 16
    REFUSED = 17
    NO_SUCH_METHOD = 18
    NO_SUCH_FAULT = 19
    NO_SUCH_ARENA = 20
    ARENA_BUSY = 21
    STALE_GENERATION = 22
    ARENA_SEALED = 23
    IDLE = 24


class MpsdError(Exception):
    """Base of the exceptions that this package raises itself; errors of the operating system stay OSError or TimeoutError."""


class Refused(MpsdError):
    """mpsd refused a call.  `code` is a number of ErrorCode, or a newer mpsd's number; `name` is its name."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.code, self.name, self.message = code, name, message


class Disconnected(MpsdError):
    """The connection has ended; mpsd may or may not have executed unanswered calls.  `why` is mpsd's reason, if it gave one."""

    def __init__(self, why: Refused | None) -> None:
        super().__init__(f"mpsd closed the connection: {why}" if why else "mpsd closed the connection")
        self.why = why


class Dismissed(MpsdError):
    """This process is not a member of the service any more, and another one may serve already.  It has to end; a new process
    may join."""


class ProtocolError(MpsdError):
    """A received message does not follow mpsd's protocol."""
