"""The front end's side of its members: the one with the highest generation serves, and nothing is heard of the others."""

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
from streams import Streams

RECEIVE_BYTES = 1 << 18
MOST_BYTES = 8 << 20  # of a line, and of what a member has not taken yet
HELLO_SECONDS = 5.0
BACKLOG = 16
WRONG = (trio.BrokenResourceError, LookupError, TypeError, ValueError)  # a broken connection, or words that are not ours


def listen(path: str) -> trio.SocketListener:
    """On a socket that only this user can reach.  One that was left behind is replaced.  Raises FileExistsError: another front
    end listens there, or it is no socket."""
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
    """One that is connected.  hello: what it said of itself.  scope: of its conversation."""

    hello: dict[str, Any]
    scope: trio.CancelScope
    outbox: bytearray = field(default_factory=bytearray)
    wake: trio.Event = field(default_factory=trio.Event)


class Backend:
    """Guards that only one member speaks, and that none with a lower generation does after it."""

    def __init__(self) -> None:
        self.streams: Streams  # which is made with our `tell`
        self.generation = 0
        self.member: Member | None = None

    def tell(self, key: str, value: object) -> None:
        """To the member that serves; where there is none, the next one is told all that is open anyway."""
        if member := self.member:
            member.outbox += json.dumps({key: value}, separators=(",", ":")).encode() + b"\n"
            if len(member.outbox) > MOST_BYTES:  # it does not listen
                member.scope.cancel()
            member.wake.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """A conversation with a member, until it or another one with a higher generation ends it."""
        async with stream:
            try:
                lines, said = Lines(stream), None
                with trio.move_on_after(HELLO_SECONDS):
                    said = await lines.receive()
                if said is None:
                    return  # it looked whether somebody is there, or is silent
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
            except WRONG as exc:  # within, since a nursery would wrap it
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
        with suppress(trio.BrokenResourceError):  # whoever reads sees the end too
            while True:
                await member.wake.wait()  # for ever: there may be nothing to say
                member.wake = trio.Event()
                data = bytes(member.outbox)
                member.outbox.clear()
                await stream.send_all(data)


class Lines:
    """JSON objects, one a line, of a stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._whole: deque[bytes] = deque()
        self._rest = b""

    async def receive(self) -> dict[str, Any] | None:
        """The next one; None at the end.  Raises trio.BrokenResourceError, also for what is no line of ours."""
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
        except ValueError as exc:
            raise trio.BrokenResourceError(f"no JSON: {exc}") from None
        return found


def complain(what: str) -> None:
    print(f"front: {what}", file=sys.stderr, flush=True)
