"""mpsd's side of the keeper (native/include/mpsd_keeper.h is the protocol).

The keeper holds the listening sockets and every open client connection, so that `kill -9` of mpsd closes none of them: CUDA
runs without MPS, silently, when its control connection is closed.
"""

import array
import os
import socket
import struct
import subprocess
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import structlog
import trio

from mpsd.errors import KeeperFailed

log = structlog.get_logger()

_MESSAGE = struct.Struct("=HHHHIIQQQQ64sQQ")
_ENTRY = struct.Struct("=64sQQQQ")
_MAJOR, _MINOR = 1, 0
_QUIET, _MORE = 0x0001, 0x4000
_REPLY_BYTES = _MESSAGE.size + 64 * _ENTRY.size
_SECONDS = 5.0  # the keeper answers in microseconds, or is stopped or dead


class _Op(IntEnum):
    HELLO = 1
    PUT = 2
    GET = 3
    DROP = 4
    LIST = 5
    STOP = 7


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    flags: int
    size: int
    count: int
    payload: bytes
    descriptors: tuple[int, ...]


class KeeperClient:
    """Guards the connection to the keeper.  `hold` and `drop` never wait: a keeper that does not keep up is reported as
    lost, and everything is given to its successor."""

    def __init__(self, program: Path, path: Path, max_descriptors: int) -> None:
        self._program = program
        self._path = path
        self._max = max_descriptors
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> bool:
        """Connect to the keeper that runs, or start one.  True: it ran before, and may hold what an earlier mpsd gave it.

        Raises KeeperFailed.
        """
        self.close()
        if self._connect():
            return True
        self._start()
        if not self._connect():
            raise KeeperFailed(f"{self._program} was started and does not answer at {self._path}")
        return False

    def hold(self, name: str, end: socket.socket, note: int = 0, generation: int = 1) -> None:
        """Give it a copy of a descriptor, and a number that comes back with it; no reply is awaited.  A higher generation
        replaces a lower one of the same name."""
        self._tell(_Op.PUT, name, generation=generation, size=note, descriptor=end.fileno())

    def drop(self, name: str) -> None:
        self._tell(_Op.DROP, name)

    def held(self) -> list[tuple[str, socket.socket, int]]:
        """Everything it holds: name, descriptor, note.  Raises KeeperFailed."""
        found: list[tuple[str, socket.socket, int]] = []
        for name in self._names():
            reply = self._ask(_Op.GET, name)
            if reply.status == 0 and reply.descriptors:
                found.append((name, socket.socket(fileno=reply.descriptors[0]), reply.size))
        return found

    def stop(self) -> None:
        """End it, and so close what it holds, unless others do too."""
        try:
            self._ask(_Op.STOP)
        except KeeperFailed:
            pass  # it has gone already
        self.close()
        self._path.unlink(missing_ok=True)
        if self._process is not None:
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    async def wait_lost(self) -> None:
        """Returns when the keeper has died or hung up, or was closed; for ever otherwise.  Logs the refusals that come
        meanwhile."""
        while self._socket is not None:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                data = self._socket.recv(_REPLY_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                break
            if len(data) < _MESSAGE.size:
                break
            fields = _MESSAGE.unpack_from(data)
            log.warning("keeper.refused", op=fields[2], name=_name(fields[10]), status=fields[5])
        if self._process is not None:
            self._process.poll()

    def close(self) -> None:
        if self._socket is not None:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(self._socket)  # or wait_lost would wait for whatever has this number next
            self._socket.close()
            self._socket = None

    # -- the protocol ------------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.settimeout(_SECONDS)
        try:
            end.connect(str(self._path))
        except OSError:
            end.close()
            return False
        self._socket = end
        try:
            reply = self._ask(_Op.HELLO)
        except KeeperFailed:
            self.close()
            return False
        if reply.status:
            self.close()
            raise KeeperFailed(f"the keeper at {self._path} refuses mpsd with status {reply.status}: is it of another version?")
        return True

    def _start(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                self._path.unlink(missing_ok=True)
                listener.bind(str(self._path))
                os.chmod(self._path, 0o600)
                listener.listen(8)
            except OSError as exc:
                raise KeeperFailed(f"the keeper's socket {self._path} cannot be made: {exc.strerror}") from None
            number = listener.fileno()
            try:
                self._process = subprocess.Popen(
                    [str(self._program), "--fd", str(number), "--max", str(self._max)],
                    pass_fds=[number],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,  # what ends mpsd's session must not end it
                )
            except OSError as exc:
                raise KeeperFailed(f"the keeper {self._program} cannot be started: {exc.strerror}") from None

    def _names(self) -> list[str]:
        names: list[str] = []
        while True:
            reply = self._ask(_Op.LIST, names[-1] if names else "")
            for index in range(reply.count):
                names.append(_name(_ENTRY.unpack_from(reply.payload, index * _ENTRY.size)[0]))
            if not reply.flags & _MORE:
                return names

    def _pack(self, op: _Op, name: str, flags: int, generation: int, size: int = 0) -> bytes:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        return _MESSAGE.pack(_MAJOR, _MINOR, op, flags, self._sequence, 0, generation, size, 0, 0, name.encode(), 0, 0)

    def _tell(
        self, op: _Op, name: str, generation: int = 0, size: int = 0, descriptor: int | None = None
    ) -> None:
        if self._socket is None:
            return
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            self._socket.sendmsg([self._pack(op, name, _QUIET, generation, size)], rights, flags)
        except OSError as exc:
            log.error("keeper.lost", why=exc.strerror, op=op.name)
            self._socket.shutdown(socket.SHUT_RDWR)  # wait_lost sees it, and its successor is given everything

    def _ask(self, op: _Op, name: str = "") -> _Reply:
        """One request and its reply, waiting for at most a few seconds.  Raises KeeperFailed."""
        if self._socket is None:
            raise KeeperFailed(f"there is no connection to the keeper at {self._path}")
        try:
            self._socket.send(self._pack(op, name, 0, 0), socket.MSG_NOSIGNAL)
            while True:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _REPLY_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                if len(data) < _MESSAGE.size:
                    raise KeeperFailed(f"the keeper at {self._path} hung up on {op.name}")
                fields = _MESSAGE.unpack_from(data)
                if fields[4] == self._sequence:
                    return _Reply(fields[5], fields[3], fields[7], fields[9], data[_MESSAGE.size :], tuple(descriptors))
        except OSError as exc:
            raise KeeperFailed(f"the keeper at {self._path} did not answer {op.name}: {exc}") from None


def _name(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", errors="replace")
