"""Keeper client: the protocol of native/include/mpsd_keeper.h, spoken synchronously, for the tests of the keeper."""

import array
import os
import signal
import socket
import struct
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

MAJOR, MINOR = 1, 0
HELLO, PUT, GET, DROP, LIST, STAT, STOP = range(1, 8)
QUIET, MORE, REPLY = 0x0001, 0x4000, 0x8000
(
    OK,
    BAD_VERSION,
    BAD_SIZE,
    BAD_FIELD,
    BAD_OP,
    BAD_ID,
    BAD_GENERATION,
    BAD_DESCRIPTORS,
    NOT_FOUND,
    STALE,
    FULL,
    NO_ROOM,
    NOT_GREETED,
    NOT_ALLOWED,
    PEERS_FULL,
) = range(15)
PAGE, PEERS, ID_BYTES = 64, 8, 64

MESSAGE = struct.Struct("=HHHHIIQQQQ64sQQ")
ENTRY = struct.Struct("=64sQQQQ")
STATS = struct.Struct("=IIIIIIQQQQQQQQQQQQQ")
REPLY_BYTES = MESSAGE.size + PAGE * ENTRY.size


@dataclass(frozen=True, slots=True)
class Message:
    """One message, and the payload and descriptors that came with it."""

    op: int
    id: bytes = b""
    generation: int = 0
    size: int = 0
    item_flags: int = 0
    flags: int = 0
    sequence: int = 0
    status: int = 0
    count: int = 0
    major: int = MAJOR
    minor: int = MINOR
    reserved: tuple[int, int] = (0, 0)
    payload: bytes = b""
    fds: list[int] = field(default_factory=list)

    def pack(self) -> bytes:
        head = (self.major, self.minor, self.op, self.flags, self.sequence, self.status)
        return MESSAGE.pack(*head, self.generation, self.size, self.item_flags, self.count, self.id, *self.reserved)

    @classmethod
    def unpack(cls, data: bytes, fds: list[int]) -> Self:
        major, minor, op, flags, sequence, status, generation, size, item_flags, count, name, *reserved = MESSAGE.unpack_from(
            data
        )
        return cls(
            op, name.rstrip(b"\0"), generation, size, item_flags, flags, sequence, status, count, major, minor,
            (reserved[0], reserved[1]), data[MESSAGE.size :], fds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stats:
    """The keeper's own account of itself."""

    pid: int
    held: int
    held_max: int
    peers: int
    peers_max: int
    size_sum: int
    started_ns: int
    puts: int
    gets: int
    drops: int
    refusals: int
    strangers: int
    impatience: int


class KeeperClient:
    """One connection.  Every wait ends after `timeout` seconds; `greet=False` leaves out HELLO."""

    def __init__(self, path: Path, *, greet: bool = True, timeout: float = 10.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self._sequence = 0
        try:
            self.socket.connect(str(path))
            self.greeting = self.ask(Message(HELLO)) if greet else None
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> int:
        self._sequence += 1
        self.send_raw(replace(message, sequence=self._sequence).pack(), fds)
        return self._sequence

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([data], rights)

    def receive(self) -> Message:
        try:
            data, control, _flags, _address = self.socket.recvmsg(REPLY_BYTES + 1, socket.CMSG_SPACE(64 * 4))
        except ConnectionResetError:  # reported once, before the keeper's last datagrams; then come these, then the end
            data, control, _flags, _address = self.socket.recvmsg(REPLY_BYTES + 1, socket.CMSG_SPACE(64 * 4))
        fds: list[int] = []
        for _level, _kind, content in control:
            fds += array.array("i", content[: len(content) - len(content) % 4])
        if not data:
            raise EOFError
        return Message.unpack(data, fds)

    def ask(self, message: Message, fds: tuple[int, ...] = ()) -> Message:
        sequence = self.send(message, fds)
        reply = self.receive()
        assert (reply.op, reply.sequence, reply.flags & REPLY) == (message.op, sequence, REPLY)
        assert reply.reserved == (0, 0)
        return reply

    def put(self, name: bytes, fd: int, generation: int = 1, size: int = 0, item_flags: int = 0) -> int:
        return self.ask(Message(PUT, name, generation, size, item_flags), (fd,)).status

    def put_quietly(self, name: bytes, fd: int, generation: int = 1) -> None:
        self.send(Message(PUT, name, generation, flags=QUIET), (fd,))

    def get(self, name: bytes, generation: int = 0) -> Message:
        return self.ask(Message(GET, name, generation))

    def drop(self, name: bytes, generation: int = 0) -> int:
        return self.ask(Message(DROP, name, generation)).status

    def list(self) -> list[tuple[bytes, int, int, int]]:
        """(id, generation, size, item_flags) of everything, page by page."""
        found: list[tuple[bytes, int, int, int]] = []
        while True:
            reply = self.ask(Message(LIST, found[-1][0] if found else b""))
            assert reply.status == OK
            assert len(reply.payload) == reply.count * ENTRY.size
            for name, generation, size, item_flags, reserved in ENTRY.iter_unpack(reply.payload):
                assert reserved == 0
                found.append((name.rstrip(b"\0"), generation, size, item_flags))
            if not reply.flags & MORE:
                return found

    def stats(self) -> Stats:
        reply = self.ask(Message(STAT))
        assert reply.status == OK
        values = STATS.unpack(reply.payload)
        assert values[5] == 0
        assert values[14:] == (0,) * 5
        return Stats(*values[:5], *values[6:14])


class RunningKeeper:
    """A keeper with a listening socket at `path`; ended on leaving the `with`."""

    def __init__(self, program: Path, path: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.path = path
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            self.process = subprocess.Popen(
                [program, "--fd", str(listener.fileno()), *arguments],
                pass_fds=(listener.fileno(),),
                env=environment or {},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()

    def client(self, *, greet: bool = True) -> KeeperClient:
        return KeeperClient(self.path, greet=greet)

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)
