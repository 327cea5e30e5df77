"""The protocol without a socket: calls become datagrams, datagrams become answers and events.

Descriptors that came with an answer are closed, unless whoever asked for it gets them.

Both clients are this with a way to send and to receive.  Frames: mpsd's docs/protocol.md, "Frames".
"""

import errno
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import msgpack

from mpsd_client._call import Call
from mpsd_client._datagrams import MAX_BYTES, close_all
from mpsd_client._errors import Disconnected, ProtocolError, Refused
from mpsd_client._reading import read
from mpsd_client._values import Event, Hello, Lost

VERSION = 1
MOST_EVENTS = 10_000  # that wait for whoever asked for them and does not take them
_REQUEST, _RESPONSE, _NOTIFICATION = 0, 1, 2
_MAX_ID = 2**32 - 1

T = TypeVar("T")


@dataclass(slots=True)
class _Answer:
    error: Any
    result: Any
    fds: tuple[int, ...]
    is_cut: bool


@dataclass(slots=True)
class Conversation:
    """Guards that each answer finds the call it belongs to, and that events keep their order."""

    why: Refused | None = None  # mpsd's last words
    is_over: bool = False
    _calls: dict[int, Call[Any]] = field(default_factory=dict)
    _answers: dict[int, _Answer] = field(default_factory=dict)
    _events: deque[Event | Lost] = field(default_factory=deque)
    _numbers: Any = field(default_factory=lambda: count(1))

    def ask(self, call: Call[Any]) -> tuple[int, bytes]:
        """A number to ask for the answer by, and the datagram.  Raises ProtocolError for a call that is too large."""
        number = next(self._numbers) & _MAX_ID
        params = [dict(call.params)] if call.params else []
        datagram: bytes = msgpack.packb([_REQUEST, number, call.method, params])
        if len(datagram) > MAX_BYTES:
            raise ProtocolError(f"{call.method}: {len(datagram)} bytes, and a datagram has at most {MAX_BYTES}")
        self._calls[number] = call
        return number, datagram

    def receive(self, data: bytes, fds: tuple[int, ...] = (), *, is_cut: bool = False) -> None:
        """Take in what came; no bytes are the end.  Raises ProtocolError.

        fds: are its from now on.  is_cut: more came, for which there was no room."""
        is_kept = False
        try:
            is_kept = self._take(data, fds, is_cut)
        finally:
            if not is_kept:
                close_all(fds)

    def _take(self, data: bytes, fds: tuple[int, ...], is_cut: bool) -> bool:
        """Whether it is an answer that is kept."""
        if not data:
            self.is_over = True
            return False
        try:
            frame = msgpack.unpackb(data)
        except ValueError as exc:
            raise ProtocolError(f"no MessagePack came: {exc}") from None
        match frame:
            case [0 | 1 as kind, int(number), error, result] if kind == _RESPONSE:
                if number not in self._calls or number in self._answers:
                    return False  # nobody waits for it any more
                self._answers[number] = _Answer(error, result, fds, is_cut)
                return True
            case [2, str(method), [dict(facts)]]:
                self._hear(method, facts)
                return False
        raise ProtocolError("a frame came that mpsd does not send")

    def answer(self, number: int) -> bool | None:
        """None while there is none; raises Disconnected when there will not be one."""
        if number in self._answers:
            return True
        if self.is_over:
            raise Disconnected(self.why)
        return None

    def result(self, number: int) -> Any:
        """What the answer says, read.  Raises Refused, ProtocolError, OSError where descriptors could not be opened."""
        call, answer = self._calls[number], self._answers[number]
        if answer.error is not None:
            raise _refused(answer.error)
        if answer.is_cut:
            raise OSError(errno.EMFILE, "no room for the descriptors that came with an answer")
        try:
            if call.read_with is None:
                return call.read(answer.result)
            result = call.read_with(answer.result, answer.fds)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:  # a result of another shape
            raise ProtocolError(f"{call.method}: the answer is none of this protocol: {exc!r:.200}") from None
        answer.fds = ()  # they belong to whoever asked
        return result

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._calls.pop(number, None)
        answer = self._answers.pop(number, None)
        if answer is not None:
            close_all(answer.fds)

    def take_event(self) -> Event | Lost | None:
        """The next one; None while there is none; raises Disconnected when there will not be one."""
        if self._events:
            return self._events.popleft()
        if self.is_over:
            raise Disconnected(self.why)
        return None

    def _hear(self, method: str, facts: Mapping[str, Any]) -> None:
        if method == "goodbye":
            self.why = _refused(facts)
        elif method == "event":
            self._keep(read(Event, facts))
        elif method == "events.lost":
            self._keep(read(Lost, facts))  # other notifications are a newer mpsd's

    def _keep(self, event: Event | Lost) -> None:
        """In order; what is too much is counted in its place."""
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)
            return
        more = event.count if isinstance(event, Lost) else 1
        last = self._events[-1]
        if isinstance(last, Lost):
            self._events[-1] = Lost(last.count + more)
        else:
            self._events.append(Lost(more))


def hello(program: str) -> Call[Hello]:
    return Call("hello", {"version": VERSION, "program": program[:64]}, lambda found: read(Hello, found))


def subscribe(topics: tuple[str, ...]) -> Call[None]:
    return Call("events.subscribe", {"topics": list(topics)}, lambda found: None)


def unsubscribe() -> Call[None]:
    return Call("events.unsubscribe", {}, lambda found: None)


def _refused(error: Any) -> Refused:
    try:
        return Refused(error["code"], error["name"], error["message"])
    except (KeyError, TypeError):
        raise ProtocolError("an error came without code, name and message") from None
