"""A member's connection to the front end: JSON lines over a Unix socket, both ways, without ever waiting for the other side.

    member -> front end    hello {generation, pid, vocab, length}; tokens [[request, index, token], ...]; refused [request, why]
    front end -> member    request {...}, for each that is open; all {}; later request, cancel id, got id, again [id, index]

Each line is an object with one key.  A connection that breaks is made again, and everything that matters is said again then.
"""

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

RETRY_SECONDS = 0.05
RECEIVE_BYTES = 1 << 16
MOST_UNSENT = 8 << 20  # bytes; a front end that leaves so much lying is given up


class Link:
    """Guards that nothing waits: `hear` and `say` return at once, `wait` when its time is up."""

    def __init__(self, path: str, hello: dict[str, Any]) -> None:
        self._path, self._hello = path, hello
        self._socket: socket.socket | None = None
        self._again_at = 0.0
        self._heard = bytearray()
        self._unsent = bytearray()
        self.connections = 0

    def hear(self) -> list[tuple[str, Any]]:
        """What came, as (key, value); connects where that is needed.  `connections` grows with each new one."""
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
        """Dropped where there is no connection: whoever answers next asks for what it lacks."""
        if self._socket is not None:
            self._unsent += json.dumps({key: value}, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def wait(self, seconds: float) -> None:
        """Until something comes, or something more can be sent."""
        if self._socket is None:
            time.sleep(min(seconds, RETRY_SECONDS))
        else:
            select.select([self._socket], [self._socket] if self._unsent else [], [], seconds)
            self._flush()

    def finish(self, seconds: float) -> None:
        """Sends what is not sent yet, as far as the time allows, and closes."""
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
        except OSError:  # there is none, or too many are waiting there
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
