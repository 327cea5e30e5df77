"""Command sessions: front ends that connect to PIPE_DIR/mpsd-ui.

    front end                        mpsd
    `mpsd-ui 1`                 ->
                                <-   `mpsd-ui 1`
    one datagram per command    ->
                                <-   `O`bytes, `E`bytes (stdout, stderr), any number; then `X`status

SEQPACKET; both programs are built together, so another version is refused and that is all.
"""

import grp
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio

from mpsd.legacy.board import Board
from mpsd.legacy.commands import dispatch
from mpsd.legacy.exchange import Answer, Caller
from mpsd.legacy.grammar import printable
from mpsd.relay.peers import peer_credentials

log = structlog.get_logger()
GREETING = b"mpsd-ui 1"
MAX_COMMAND_BYTES = 4096
_CHUNK_BYTES = 16 * 1024 - 1
_SEND_SECONDS = 30.0
_SO_PEERGROUPS = 59
_MAX_GROUPS = 65536  # NGROUPS_MAX


@dataclass(frozen=True, slots=True)
class SessionSettings:
    max_sessions: int
    idle_seconds: float
    admin_group: str


class Sessions:
    """Guards the number of sessions; further front ends queue in the kernel until one ends."""

    def __init__(self, board: Board, write_log: Callable[[str], None], settings: SessionSettings) -> None:
        self._board = board
        self._write_log = write_log
        self.settings = settings
        self._open = 0
        self._ended = trio.Event()

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled."""
        while True:
            while self._open >= self.settings.max_sessions:
                self._ended = trio.Event()
                await self._ended.wait()
            await trio.lowlevel.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as exc:
                log.error("ui.accept_failed", why=exc.strerror)
                await trio.sleep(0.1)
                continue
            self._open += 1
            nursery.start_soon(self._converse, connection)

    async def settled(self) -> None:
        """Returns when no session is open."""
        while self._open:
            self._ended = trio.Event()
            await self._ended.wait()

    async def _converse(self, connection: socket.socket) -> None:
        """Whatever goes wrong in here ends this session and nothing else."""
        connection.setblocking(False)
        try:
            with connection:
                await self._session(connection)
        except (OSError, trio.TooSlowError) as exc:
            log.info("ui.dropped", why=repr(exc))
        except Exception:
            log.exception("ui.bug")
        finally:
            self._open -= 1
            self._ended.set()

    async def _session(self, connection: socket.socket) -> None:
        caller = self._caller(connection)
        first = await self._receive(connection)
        if first != GREETING:
            if first:
                why = f"This mpsd speaks '{GREETING.decode()}', the front end said {first[:32]!r}: install both anew\n"
                await _send(connection, b"E" + why.encode())
                await _send(connection, b"X\x01")
            return
        await _send(connection, GREETING)
        self._write_log("NEW UI")
        while line := await self._receive(connection):
            if len(line) > MAX_COMMAND_BYTES:
                answer = Answer(f"Command too long: more than {MAX_COMMAND_BYTES} bytes\n", 1)
            else:
                answer = await dispatch(self._board, caller, line)
            self._record(line, answer)
            await _reply(connection, answer)
        self._write_log("UI closed")

    def _record(self, line: bytes, answer: Answer) -> None:
        text = printable(line[:MAX_COMMAND_BYTES])
        self._write_log(f"Cmd:{text}\n{answer.stdout}" if answer.stdout else f"Cmd:{text}")

    async def _receive(self, connection: socket.socket) -> bytes:
        """The next datagram, one byte over the bound at most; empty at the end.  Raises TooSlowError."""
        with trio.fail_after(self.settings.idle_seconds):
            while True:
                await trio.lowlevel.wait_readable(connection)
                try:
                    return connection.recv(MAX_COMMAND_BYTES + 1)
                except (BlockingIOError, ConnectionResetError):
                    continue  # a reset is told once, before the commands that are still queued

    def _caller(self, connection: socket.socket) -> Caller:
        """The only place that decides who an operator is: root, the owner, members of the admin group."""
        credentials = peer_credentials(connection)
        is_admin = bool(self.settings.admin_group) and _is_member(connection, credentials.gid, self.settings.admin_group)
        return Caller(credentials.uid, os.geteuid(), is_admin)


def _is_member(connection: socket.socket, gid: int, group: str) -> bool:
    """By the groups of the process that connected, not by what the user database says now."""
    try:
        wanted = grp.getgrnam(group).gr_gid
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * 4)
    except (KeyError, OSError):
        return False
    return wanted == gid or wanted in struct.unpack(f"{len(raw) // 4}I", raw)


async def _reply(connection: socket.socket, answer: Answer) -> None:
    for letter, text in ((b"O", answer.stdout), (b"E", answer.stderr)):
        data = text.encode(errors="replace")
        for start in range(0, len(data), _CHUNK_BYTES):
            await _send(connection, letter + data[start : start + _CHUNK_BYTES])
    await _send(connection, b"X" + bytes([min(answer.status, 255)]))


async def _send(connection: socket.socket, data: bytes) -> None:
    """Raises TooSlowError when the front end does not listen."""
    with trio.fail_after(_SEND_SECONDS):
        while True:
            try:
                connection.send(data, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(connection)
