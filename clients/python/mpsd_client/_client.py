"""The blocking client."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from mpsd_client import _conversation
from mpsd_client._call import Call, after
from mpsd_client._conversation import Conversation
from mpsd_client._datagrams import CROWDED_SECONDS, receive, send
from mpsd_client._place import BACKLOG_SECONDS, has_connected, new_socket, socket_path
from mpsd_client._values import Event, Hello, Lost, Page

T = TypeVar("T")
_LONGEST_POLL_MS = 86_400_000  # poll accepts less than 2**31; a longer wait calls it again


class Client:
    """One connection to mpsd, for one thread at a time.

    path: the socket; None: mpsd.sock in $CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps.  program: the name of this program
    in mpsd's log.  timeout_seconds: how long mpsd may take to answer; None: without limit.

    Raises PermissionError if the listening process belongs to another user than root or the caller's; OSError if mpsd does
    not listen; Refused if mpsd refuses the call; Disconnected if mpsd closes the connection; TimeoutError.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout_seconds: float | None = 30.0, program: str = ""
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._conversation = Conversation()
        self._sock = new_socket()
        try:
            self._connect(socket_path(path))
            self.hello: Hello = self.ask(_conversation.hello(program))
        except BaseException:
            self._sock.close()
            raise

    def ask(self, call: Call[T]) -> T:
        """Send a call and return the result of its answer.  Raises Refused, Disconnected, ProtocolError, TimeoutError."""
        number, datagram = self._conversation.ask(call)
        try:
            deadline = _deadline(self.timeout_seconds)
            self._send(datagram, call.fds, deadline)
            self._wait_for(lambda: self._conversation.answer(number), deadline)
            result: T = self._conversation.result(number)
            return result
        finally:
            self._conversation.forget(number)

    def pages(self, call: Call[Page[T]]) -> Iterator[T]:
        """Iterate over all items of a list, and request page after page."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = self.ask(following)
            yield from page.items
            following = after(call, page)

    def subscribe(self, *topics: str) -> None:
        """Subscribe to topics: one by name, a family (`lease.*`), or all (`*`).  Replaces the previous subscription."""
        self.ask(_conversation.subscribe(topics))

    def unsubscribe(self) -> None:
        self.ask(_conversation.unsubscribe())

    def events(self, timeout_seconds: float | None = None) -> Iterator[Event | Lost]:
        """Iterate over events, until none arrives for `timeout_seconds`; None: for ever.  A Lost marks missing events."""
        while True:
            try:
                event: Event | Lost = self._wait_for(self._conversation.take_event, _deadline(timeout_seconds))
            except TimeoutError:
                return
            yield event

    def close(self) -> None:
        self._sock.close()

    def interrupt(self) -> None:
        """Shut the connection down, from any thread: a pending `ask` and all later ones raise Disconnected."""
        with suppress(OSError):  # the socket is not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _connect(self, path: str) -> None:
        deadline = _deadline(self.timeout_seconds)
        while not has_connected(self._sock, path):
            _left(deadline)
            time.sleep(BACKLOG_SECONDS)

    def _wait_for(self, ready: Callable[[], Any], deadline: float | None) -> Any:
        while (found := ready()) is None:
            self._wait(select.POLLIN, deadline)
            try:
                datagram = receive(self._sock)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                continue  # reported once, ahead of the datagrams still queued; those follow, then the end
            self._conversation.receive(datagram.data, datagram.fds, is_cut=datagram.is_cut)
        return found

    def _send(self, datagram: bytes, fds: Sequence[int], deadline: float | None) -> None:
        while True:
            try:
                if send(self._sock, datagram, fds):
                    return
                _left(deadline)
                time.sleep(CROWDED_SECONDS)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except BrokenPipeError:
                return  # the queued datagrams and the end of the connection are still to be read

    def _wait(self, event: int, deadline: float | None) -> None:
        """Wait until the socket is ready.  Raises TimeoutError at the deadline."""
        poll = select.poll()
        poll.register(self._sock, event)
        left = _left(deadline)
        poll.poll(None if left is None else min(left * 1000, _LONGEST_POLL_MS))


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("mpsd did not answer in time")
    return left
