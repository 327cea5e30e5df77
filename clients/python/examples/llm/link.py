"""A member's connection to the front end: JSON lines over a non-blocking Unix socket, in both directions.

    member -> front end    hello {generation, pid, vocab, length}; tokens [[request, index, token], ...]; refused [request, why]
    front end -> member    request {...}, for each open request; all {}; later request, cancel id, got id, again [id, index]

Each line is an object with one key.  The member reconnects after a broken connection; both sides then repeat their state.
"""

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

RETRY_SECONDS = 0.05
RECEIVE_BYTES = 1 << 16
MOST_UNSENT = 8 << 20  # bytes; with more unsent, the member closes the connection


class Link:
    """A connection that never blocks the member: `hear` and `say` return at once, `wait` returns when its time is up."""

    def __init__(self, path: str, hello: dict[str, Any]) -> None:
        self._path, self._hello = path, hello
        self._socket: socket.socket | None = None
        self._again_at = 0.0
        self._heard = bytearray()
        self._unsent = bytearray()
        self.connections = 0

    def hear(self) -> list[tuple[str, Any]]:
        """Return the received messages as (key, value); connect first if necessary.  Each connect increments `connections`."""
        if self._socket is None and not self._connect():
            return []
        assert self._socket is not None
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._heard += data
        *lines, rest = self._heard.split(b"\n")
        self._heard = bytearray(rest)
        return [item for line in lines for item in json.loads(line).items()]

    def say(self, key: str, value: Any) -> None:
        """Send a message.  Without a connection it is dropped: after a reconnect the front end requests the missing tokens."""
        if self._socket is not None:
            self._unsent += json.dumps({key: value}, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, until more can be sent, or for this many seconds at most."""
        if self._socket is None:
            time.sleep(min(seconds, RETRY_SECONDS))
        else:
            select.select([self._socket], [self._socket] if self._unsent else [], [], seconds)
            self._flush()

    def finish(self, seconds: float) -> None:
        """Send the unsent data, for this many seconds at most, and close the connection."""
        until = time.monotonic() + seconds
        while self._unsent and self._socket is not None and (left := until - time.monotonic()) > 0:
            select.select([], [self._socket], [], left)
            self._flush()
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._heard.clear()
        self._unsent.clear()

    def _connect(self) -> bool:
        if time.monotonic() < self._again_at:
            return False
        self._again_at = time.monotonic() + RETRY_SECONDS
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            made.connect(self._path)
        except OSError:  # no front end listens, or its backlog is full
            made.close()
            return False
        self._socket = made
        self.connections += 1
        self.say("hello", self._hello)
        return self._socket is not None

    def _flush(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            with suppress(BlockingIOError):
                del self._unsent[: self._socket.send(self._unsent)]
        except OSError:
            self.close()
        if len(self._unsent) > MOST_UNSENT:
            self.close()
