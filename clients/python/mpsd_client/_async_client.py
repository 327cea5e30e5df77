"""The client for trio."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import trio

from mpsd_client import _conversation
from mpsd_client._call import Call, after
from mpsd_client._conversation import Conversation
from mpsd_client._datagrams import CROWDED_SECONDS, Datagram, receive, send
from mpsd_client._place import BACKLOG_SECONDS, has_connected, new_socket, socket_path
from mpsd_client._values import Event, Hello, Lost, Page

T = TypeVar("T")


class AsyncClient:
    """One connection to mpsd, for any number of tasks: `async with AsyncClient() as mpsd`.

    path, program: as for `Client`.  For deadlines use trio: `with trio.fail_after(5): await mpsd.ask(...)`.

    Raises PermissionError if the listening process belongs to another user than root or the caller's; OSError if mpsd does
    not listen; Refused if mpsd refuses the call; Disconnected if mpsd closes the connection.
    """

    hello: Hello

    def __init__(self, path: str | os.PathLike[str] | None = None, *, program: str = "") -> None:
        self._path, self._program = socket_path(path), program
        self._conversation = Conversation()
        self._sock = new_socket()
        self._is_reading = False  # one task reads for all; the others are parked until a datagram arrives
        self._parked = trio.lowlevel.ParkingLot()
        self._sending = trio.Lock()  # one task at a time waits for room in the socket

    async def __aenter__(self) -> "AsyncClient":
        try:
            while not has_connected(self._sock, self._path):  # noqa: ASYNC110
                await trio.sleep(BACKLOG_SECONDS)
            self.hello = await self.ask(_conversation.hello(self._program))
        except BaseException:
            self._sock.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

    async def ask(self, call: Call[T]) -> T:
        """Send a call and return the result of its answer.  If the task is cancelled, mpsd may or may not have executed it."""
        number, datagram = self._conversation.ask(call)
        try:
            await self._send(datagram, call.fds)
            await self._wait_for(lambda: self._conversation.answer(number))
            result: T = self._conversation.result(number)
            return result
        finally:
            self._conversation.forget(number)

    async def pages(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        """Iterate over all items of a list, and request page after page."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = await self.ask(following)
            for each in page.items:
                yield each
            following = after(call, page)

    async def subscribe(self, *topics: str) -> None:
        """Subscribe to topics: one by name, a family (`lease.*`), or all (`*`).  Replaces the previous subscription."""
        await self.ask(_conversation.subscribe(topics))

    async def unsubscribe(self) -> None:
        await self.ask(_conversation.unsubscribe())

    async def events(self) -> AsyncIterator[Event | Lost]:
        """Iterate over events for ever.  A Lost marks missing events."""
        while True:
            event: Event | Lost = await self._wait_for(self._conversation.take_event)
            yield event

    async def _wait_for(self, ready: Callable[[], Any]) -> Any:
        while (found := ready()) is None:
            if self._is_reading:
                await self._parked.park()
                continue
            self._is_reading = True
            try:
                datagram = await self._receive()
            finally:
                self._is_reading = False
                self._parked.unpark_all()  # if the datagram is for none of them, one of them reads next
            self._conversation.receive(datagram.data, datagram.fds, is_cut=datagram.is_cut)
        return found

    async def _receive(self) -> Datagram:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return receive(self._sock)
            except (BlockingIOError, ConnectionResetError):
                continue  # a reset is reported once, ahead of the datagrams still queued; those follow, then the end

    async def _send(self, datagram: bytes, fds: Sequence[int]) -> None:
        async with self._sending:
            while True:
                try:
                    if send(self._sock, datagram, fds):
                        return
                    await trio.sleep(CROWDED_SECONDS)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._sock)
                except BrokenPipeError:
                    return  # the queued datagrams and the end of the connection are still to be read
