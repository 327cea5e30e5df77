"""The errors that mpsd answers requests with, and their codes.

An ``MpsdError`` is an answer to the caller, never a bug.  Its code is part of the interface: it never changes meaning, and
numbers are not reused.  Prose: docs/errors.md.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Stable numbers; docs/errors.md explains each to an operator."""

    BAD_REQUEST = 1  # the words are not a command, or a value is out of range
    NOT_ALLOWED = 2  # the caller may not do this
    NO_SUCH_SERVER = 3
    NO_SUCH_CLIENT = 4
    NO_SUCH_DEVICE = 5
    VENDOR_FAILED = 6  # a vendor program is missing, crashed, hung, or refused
    TOO_MANY = 7  # a limit was reached: connections, sessions, domains
    STOPPING = 8  # mpsd is ending
    BAD_CONFIGURATION = 9
    UNUSABLE_PATH = 10  # a directory or socket path cannot be used
    ALREADY_RUNNING = 11
    PROTOCOL = 12  # a peer broke the protocol of one of mpsd's sockets
    KEEPER_FAILED = 13
    NO_SUCH_LEASE = 14
    NO_SUCH_DOMAIN = 15
    NO_ROOM = 16  # a budget or quota does not allow it
    REFUSED = 17  # a client was refused by admission
    NO_SUCH_METHOD = 18
    NO_SUCH_FAULT = 19  # no fault of this number, or no conviction, suspicion or pause of this key
    NO_SUCH_ARENA = 20  # no arena has this name or id, or its mode hides it from the caller
    ARENA_BUSY = 21  # another process writes it, or holds it, so that it cannot be removed yet
    STALE_GENERATION = 22  # a later writer was admitted, or the memory was lost: the caller's writes are refused
    ARENA_SEALED = 23
    IDLE = 24  # mpsd ends a connection that was silent too long


class MpsdError(Exception):
    """A refusal.  The message names the request and what mpsd found."""

    code = ErrorCode.BAD_REQUEST


class BadRequest(MpsdError):
    code = ErrorCode.BAD_REQUEST


class NotAllowed(MpsdError):
    code = ErrorCode.NOT_ALLOWED


class NoSuchServer(MpsdError):
    code = ErrorCode.NO_SUCH_SERVER


class NoSuchClient(MpsdError):
    code = ErrorCode.NO_SUCH_CLIENT


class NoSuchDevice(MpsdError):
    code = ErrorCode.NO_SUCH_DEVICE


class VendorFailed(MpsdError):
    code = ErrorCode.VENDOR_FAILED


class TooMany(MpsdError):
    code = ErrorCode.TOO_MANY


class Stopping(MpsdError):
    code = ErrorCode.STOPPING


class BadConfiguration(MpsdError):
    code = ErrorCode.BAD_CONFIGURATION


class UnusablePath(MpsdError):
    code = ErrorCode.UNUSABLE_PATH


class AlreadyRunning(MpsdError):
    code = ErrorCode.ALREADY_RUNNING


class ProtocolError(MpsdError):
    code = ErrorCode.PROTOCOL


class WrongSpeaker(ProtocolError):
    """Another process than the one that connected sends on its connection."""


class FatalMessage(ProtocolError):
    """A client's message that the vendor's daemon, or the clients of others there, might not survive."""


class KeeperFailed(MpsdError):
    code = ErrorCode.KEEPER_FAILED


class NoSuchLease(MpsdError):
    code = ErrorCode.NO_SUCH_LEASE


class NoSuchDomain(MpsdError):
    code = ErrorCode.NO_SUCH_DOMAIN


class NoRoom(MpsdError):
    code = ErrorCode.NO_ROOM


class Refused(MpsdError):
    """The refusal of a client at its start; `way`: how the client is refused (mpsd/model/lease.py, Refusal)."""

    code = ErrorCode.REFUSED

    def __init__(self, way: str, why: str) -> None:
        super().__init__(why)
        self.way = way


class NoSuchMethod(MpsdError):
    code = ErrorCode.NO_SUCH_METHOD


class NoSuchFault(MpsdError):
    code = ErrorCode.NO_SUCH_FAULT


class NoSuchArena(MpsdError):
    code = ErrorCode.NO_SUCH_ARENA


class ArenaBusy(MpsdError):
    code = ErrorCode.ARENA_BUSY


class StaleGeneration(MpsdError):
    code = ErrorCode.STALE_GENERATION


class ArenaSealed(MpsdError):
    code = ErrorCode.ARENA_SEALED


class Idle(MpsdError):
    code = ErrorCode.IDLE
