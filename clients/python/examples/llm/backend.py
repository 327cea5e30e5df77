"""The front end's connections to its members.  The member with the highest generation serves; the others are disconnected."""

import json
import os
import socket
import stat
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from streams import MOST_TOKENS, Streams

RECEIVE_BYTES = 1 << 18
MOST_BYTES = 8 << 20  # limit of one line
MOST_UNREAD = 16 * MOST_TOKENS  # bytes for a member: all open requests, a token of which is 11 bytes at most, and more
HELLO_SECONDS = 5.0
BACKLOG = 16
WRONG = (trio.BrokenResourceError, AttributeError, LookupError, TypeError, ValueError)  # of a connection or a message


def listen(path: str) -> trio.SocketListener:
    """Listen on a Unix socket that only this user can reach; replace a stale one.  Raises FileExistsError if another front end
    listens on it, or if the path is not a socket."""
    place = Path(path)
    if place.exists():
        with socket.socket(socket.AF_UNIX) as probe:
            if not stat.S_ISSOCK(place.stat().st_mode) or probe.connect_ex(path) == 0:
                raise FileExistsError(f"{path} is in use")
        place.unlink()
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(before)
    made.listen(BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(made))


@dataclass(slots=True, eq=False)
class Member:
    """A connected member.  hello: the object that the member sent first.  scope: cancels the conversation with the member."""

    hello: dict[str, Any]
    scope: trio.CancelScope
    outbox: bytearray = field(default_factory=bytearray)
    wake: trio.Event = field(default_factory=trio.Event)


class Backend:
    """Accepts one member at a time, and never one of a lower generation than the last."""

    def __init__(self) -> None:
        self.streams: Streams  # set later: Streams takes `tell` as an argument
        self.generation = 0
        self.member: Member | None = None

    def tell(self, key: str, value: object) -> None:
        """Queue a message for the serving member.  Without a member it is dropped: the next one receives all open requests."""
        if member := self.member:
            member.outbox += json.dumps({key: value}, separators=(",", ":")).encode() + b"\n"
            if len(member.outbox) > MOST_UNREAD:  # the member does not read
                member.scope.cancel()
            member.wake.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Converse with a member until it disconnects or a member of the same or a higher generation replaces it."""
        async with stream:
            try:
                lines, said = Lines(stream), None
                with trio.move_on_after(HELLO_SECONDS):
                    said = await lines.receive()
                if said is None:
                    return  # the peer only probed the socket, or sent nothing in time
                if said["hello"]["generation"] < self.generation:
                    complain(f"a member is sent away, since its generation is not {self.generation} or later: {said!r:.80}")
                    return
                await self._converse(stream, lines, said["hello"])
            except WRONG as exc:
                complain(f"a member is sent away: {exc!r:.200}")

    async def _converse(self, stream: trio.SocketStream, lines: "Lines", hello: dict[str, Any]) -> None:
        if self.member is not None:
            self.member.scope.cancel()
        self.generation = hello["generation"]
        self.streams.counts.members += 1
        async with trio.open_nursery() as nursery:
            self.member = member = Member(hello, nursery.cancel_scope)
            for request in self.streams.open():
                self.tell("request", request.facts())
            self.tell("all", {})
            nursery.start_soon(self._send, stream, member)
            try:
                await self._hear(lines)
            except WRONG as exc:  # caught inside the nursery, which would wrap it in an ExceptionGroup
                complain(f"the member of generation {self.generation} is gone: {exc!r:.200}")
            finally:
                if self.member is member:
                    self.member = None
                nursery.cancel_scope.cancel()

    async def _hear(self, lines: "Lines") -> None:
        while found := await lines.receive():
            for key, value in found.items():
                if key == "tokens":
                    self.streams.take(value)
                elif key == "refused":
                    self.streams.refuse(*value)

    async def _send(self, stream: trio.SocketStream, member: Member) -> None:
        with suppress(trio.BrokenResourceError):  # the reading task sees the end of the connection too
            while True:
                await member.wake.wait()  # without a deadline: the outbox may stay empty
                member.wake = trio.Event()
                data = bytes(member.outbox)
                member.outbox.clear()
                await stream.send_all(data)


class Lines:
    """Reads JSON objects, one per line, from a stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._whole: deque[bytes] = deque()
        self._rest = b""

    async def receive(self) -> dict[str, Any] | None:
        """Return the next object; None at the end of the stream.  Raises trio.BrokenResourceError, also for a line that is too
        long or is not JSON."""
        while not self._whole:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                return None
            *whole, self._rest = (self._rest + bytes(data)).split(b"\n")
            self._whole.extend(whole)
            if len(self._rest) > MOST_BYTES:
                raise trio.BrokenResourceError(f"a line of over {MOST_BYTES} bytes")
        try:
            found: dict[str, Any] = json.loads(self._whole.popleft())
        except (ValueError, RecursionError) as exc:
            raise trio.BrokenResourceError(f"no JSON: {exc}") from None
        return found


def complain(what: str) -> None:
    print(f"front: {what}", file=sys.stderr, flush=True)
