"""The protocol without a socket: encode calls as datagrams, and decode datagrams into answers and events.

A conversation closes the descriptors of an answer unless the caller takes them.

The blocking and the async client add the socket.  Frames: mpsd's docs/protocol.md, "Frames".
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
MOST_EVENTS = 10_000  # that a conversation queues for a subscriber that does not take them
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
    """Matches each answer with its call, and keeps events in order."""

    why: Refused | None = None  # the reason in mpsd's goodbye
    is_over: bool = False
    _calls: dict[int, Call[Any]] = field(default_factory=dict)
    _answers: dict[int, _Answer] = field(default_factory=dict)
    _events: deque[Event | Lost] = field(default_factory=deque)
    _numbers: Any = field(default_factory=lambda: count(1))

    def ask(self, call: Call[Any]) -> tuple[int, bytes]:
        """Return the number of the call, which identifies its answer, and the datagram.  Raises ProtocolError for a call that
        is too large."""
        number = next(self._numbers) & _MAX_ID
        params = [dict(call.params)] if call.params else []
        datagram: bytes = msgpack.packb([_REQUEST, number, call.method, params])
        if len(datagram) > MAX_BYTES:
            raise ProtocolError(f"{call.method}: {len(datagram)} bytes, and a datagram has at most {MAX_BYTES}")
        self._calls[number] = call
        return number, datagram

    def receive(self, data: bytes, fds: tuple[int, ...] = (), *, is_cut: bool = False) -> None:
        """Process a received datagram; empty data means the end of the connection.  Raises ProtocolError.

        fds: the conversation owns them from now on.  is_cut: further descriptors were lost, because the process had no room."""
        is_kept = False
        try:
            is_kept = self._take(data, fds, is_cut)
        finally:
            if not is_kept:
                close_all(fds)

    def _take(self, data: bytes, fds: tuple[int, ...], is_cut: bool) -> bool:
        """Process the datagram.  Return whether it is an answer that was stored, descriptors included."""
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
                    return False  # the caller has given up this call
                self._answers[number] = _Answer(error, result, fds, is_cut)
                return True
            case [2, str(method), [dict(facts)]]:
                self._hear(method, facts)
                return False
        raise ProtocolError("a frame came that mpsd does not send")

    def answer(self, number: int) -> bool | None:
        """Return True once the answer has arrived, None before.  Raises Disconnected if the connection ended first."""
        if number in self._answers:
            return True
        if self.is_over:
            raise Disconnected(self.why)
        return None

    def result(self, number: int) -> Any:
        """Return the decoded result of an answer.  Raises Refused, ProtocolError, and OSError if descriptors were lost."""
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
        answer.fds = ()  # the caller owns them now
        return result

    def forget(self, number: int) -> None:
        """Drop the call and its answer, and close the answer's descriptors if the caller has not taken them."""
        self._calls.pop(number, None)
        answer = self._answers.pop(number, None)
        if answer is not None:
            close_all(answer.fds)

    def take_event(self) -> Event | Lost | None:
        """Return the next event, or None if none has arrived.  Raises Disconnected once the connection has ended."""
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
            self._keep(read(Lost, facts))  # unknown notifications come from a newer mpsd and are ignored

    def _keep(self, event: Event | Lost) -> None:
        """Queue the event.  If the queue is full, count the event in a Lost at the end of the queue."""
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
