"""mpsd.sock by hand: what no library would send, too.  Frames: docs/protocol.md."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

MOST_BYTES = 65536
MOST_DESCRIPTORS = 128
ANSWER_SECONDS = 30.0


class Refusal(Exception):
    """mpsd refused a request."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.code, self.name = code, name


class Gone(Exception):
    """mpsd ended the conversation, or its life."""


class Wire:
    """Guards one connection.  Descriptors that came belong to the caller."""

    def __init__(self, pipe: Path, uid: int | None = None, seconds: float = ANSWER_SECONDS) -> None:
        """As that user: the kernel notes who connects.  Raises OSError, Gone."""
        self._path, self._uid, self._seconds = str(pipe / "mpsd.sock"), uid, seconds
        self._number = 0
        self._sock = self._connected()
        self.ask("hello", version=1, program="compare")

    def _connected(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(self._seconds)
        was = os.geteuid()
        if self._uid is not None:
            os.setegid(self._uid)
            os.seteuid(self._uid)
        try:
            sock.connect(self._path)
        finally:
            if self._uid is not None:
                os.seteuid(was)
                os.setegid(was)
        return sock

    def renew(self) -> None:
        """Another connection, after mpsd ended this one."""
        self._sock.close()
        self._sock = self._connected()
        self.ask("hello", version=1, program="compare")

    def send(self, method: str, fds: Sequence[int] = (), **params: Any) -> None:
        self._number += 1
        datagram = msgpack.packb([0, self._number, method, [params] if params else []])
        try:
            socket.send_fds(self._sock, [datagram], list(fds))
        except (BrokenPipeError, ConnectionResetError):
            pass  # why it ended is still to be read

    def receive(self) -> tuple[Any, list[int]]:
        """The answer to what was sent last, and its descriptors.  Raises Refusal, Gone, TimeoutError."""
        while True:
            try:
                datagram, fds, _, _ = socket.recv_fds(self._sock, MOST_BYTES, MOST_DESCRIPTORS)
            except ConnectionResetError:
                continue  # reported once, before the datagrams that are still queued
            if not datagram:
                raise Gone("mpsd ended the conversation")
            frame = msgpack.unpackb(datagram)
            if frame[0] == 1 and frame[1] == self._number:
                if frame[2] is not None:
                    raise Refusal(frame[2]["code"], frame[2]["name"], frame[2]["message"])
                return frame[3], fds

    def ask(self, method: str, fds: Sequence[int] = (), **params: Any) -> Any:
        """The result alone; descriptors that come with it are closed."""
        self.send(method, fds, **params)
        result, came = self.receive()
        for fd in came:
            os.close(fd)
        return result

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()
