"""HTTP/1.1 for streams of JSON lines, with trio and h11.  Each connection carries one request."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
import trio

HEADER_BYTES = 16 << 10
MOST_BODY = 1 << 20
RECEIVE_BYTES = 1 << 16
REQUEST_SECONDS = 10.0  # for a request to arrive
SEND_SECONDS = 30.0  # for a client to receive one send; the tokens of its request bound the memory that a slow client costs


class BadRequest(Exception):
    """A request that is refused.  status: the HTTP status of the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Exchange:
    """A received request and its answer.  has_begun: the answer has begun, so that its status can no longer change."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        self.has_begun = False

    async def receive(self) -> tuple[str, str, bytes] | None:
        """Return method, path and body; None without a request.  Raises BadRequest, trio.BrokenResourceError."""
        try:
            with trio.fail_after(REQUEST_SECONDS):
                return await self._receive()
        except h11.RemoteProtocolError as exc:
            raise BadRequest(exc.error_status_hint, str(exc)) from None
        except trio.TooSlowError:
            raise BadRequest(408, f"no whole request within {REQUEST_SECONDS:g} seconds") from None

    async def _receive(self) -> tuple[str, str, bytes] | None:
        method = path = ""
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
            elif isinstance(event, h11.Request):
                method, path = event.method.decode(), event.target.partition(b"?")[0].decode("ascii", "replace")
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BODY:
                    raise BadRequest(413, f"a request has at most {MOST_BODY} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return method, path, bytes(body)
            else:
                return None

    async def begin(self, status: int, **headers: str) -> None:
        """Begin an answer of JSON lines."""
        self.has_begun = True
        told = {"content-type": "application/x-ndjson", "cache-control": "no-store", "connection": "close", **headers}
        await self._send(h11.Response(status_code=status, headers=[(name.replace("_", "-"), told[name]) for name in told]))

    async def lines(self, lines: list[dict[str, Any]]) -> None:
        """Send JSON lines in one piece.  Raises trio.TooSlowError, BrokenResourceError."""
        await self._send(h11.Data(data=b"".join(json.dumps(line).encode() + b"\n" for line in lines)))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def answer(self, status: int, facts: dict[str, Any], **headers: str) -> None:
        """Send a complete answer of one line."""
        await self.begin(status, **headers)
        await self.lines([facts])
        await self.end()

    async def wait_for_end(self) -> None:
        """Wait until the client disconnects or closes its side, which counts as the same.  Discard further data."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self._stream.receive_some(RECEIVE_BYTES):
                pass

    async def _send(self, event: Any) -> None:
        """Raises trio.TooSlowError; trio.BrokenResourceError, also for what HTTP does not allow here, as a body after HEAD."""
        try:
            data = self._h11.send(event) or b""
        except h11.LocalProtocolError as exc:
            raise trio.BrokenResourceError(str(exc)) from None
        with trio.fail_after(SEND_SECONDS):
            await self._stream.send_all(data)


@dataclass(frozen=True, slots=True)
class Url:
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Url":
        """Parse http://host:port or host:port.  Raises ValueError."""
        host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"host:port is expected, not {text}")
        return cls(host, int(port))


async def ask(url: Url, method: str, path: str, body: bytes, hear: Callable[[int, Any], None]) -> int:
    """Send a request as a client, and call `hear` with the status and the value of each line of the answer.  Return the status.

    Raises OSError, trio.BrokenResourceError and h11.RemoteProtocolError if the connection was dropped.
    """
    connection, status, rest = h11.Connection(h11.CLIENT), 0, b""
    async with await trio.open_tcp_stream(url.host, url.port) as stream:
        headers = [("host", f"{url.host}:{url.port}"), ("content-length", str(len(body))), ("connection", "close")]
        parts = (h11.Request(method=method, target=path, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + bytes(event.data)).split(b"\n")
                for line in lines:
                    hear(status, json.loads(line))
            elif isinstance(event, h11.EndOfMessage):
                return status
            else:
                raise trio.BrokenResourceError("the connection has ended")
