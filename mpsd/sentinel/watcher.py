"""One running mpsd-sentinel: its reports as they come, and requests to it."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog
import trio

from mpsd.errors import ProtocolError
from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.sentinel.messages import (
    REPORT_BYTES,
    UNLESS_CONTAINED,
    SentinelKind,
    SentinelOp,
    SentinelReport,
    pack_request,
    parse_report,
)

log = structlog.get_logger()
_SEND_SECONDS = 1.0
_END_SECONDS = 7.0  # the program waits up to 5 s until its client has ended
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Watcher:
    """Guards that each client is named to it once, and that after `end` neither the program nor its stopped client lives.

    hear: called with each report.  ended: called when the connection has ended, as with the program.
    """

    def __init__(
        self,
        gpu: str,
        peer: socket.socket,
        hear: Callable[["Watcher", SentinelReport], None],
        ended: Callable[["Watcher"], None],
    ) -> None:
        self.gpu = gpu
        self.client_pid = 0
        self.is_armed = False
        self.why = ""  # why it failed
        self.gone = trio.Event()
        self.decided = trio.Event()  # set: it has reported an exception, or the program has ended
        self.known = trio.Event()  # set: the pid of the stopped client is known, or the program has ended
        self._peer = peer
        self._hear, self._ended = hear, ended
        self._process: ProcessId | None = None
        self.added: set[ProcessId] = set()  # the clients that it knows
        self._unnamed: set[ProcessId] = set()  # those that mpsd could not name, once logged
        self._sending = trio.Lock()

    async def run(self) -> None:
        """Read its reports until it ends."""
        try:
            while data := await self._receive():
                self._take(parse_report(data))
        except (OSError, ProtocolError) as exc:
            self.why = self.why or str(exc)
        finally:
            self._close()
        self._ended(self)

    def forget_gone(self) -> None:
        """Forget clients that have ended, as the program itself does."""
        self.added = {each for each in self.added if processes.is_alive(each)}
        self._unnamed = {each for each in self._unnamed if processes.is_alive(each)}

    @property
    def pids(self) -> frozenset[int]:
        return frozenset({self.client_pid} - {0})

    @property
    def own_pids(self) -> frozenset[int]:
        return self.pids | ({self._process.pid} if self._process else set())

    async def add(self, process: ProcessId) -> bool:
        """Name a client of the server to it, once while it lives; return whether that was done, and so has taken time.

        False too if the process cannot be read, as while a user holds its /proc: the next call tries again.
        """
        if process in self.added or not processes.is_alive(process):
            return False
        self.added.add(process)  # before the wait, in which another call may come
        if is_named := await self._send_process(SentinelOp.ADD, process):
            self._unnamed.discard(process)
        else:
            self.added.discard(process)
        return is_named

    async def attach(self, server: ProcessId) -> None:
        """Name the server to it: they end together."""
        await self._send_process(SentinelOp.SERVER, server)

    async def end(self, *, unless_contained: bool = False) -> None:
        """End the program and its stopped client, by a request or else by a signal.  Waits a limited time.

        unless_contained: not if it has an exception to contain; then return once it has reported that one.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * _END_SECONDS):
            with trio.move_on_after(_END_SECONDS):
                await self._send(pack_request(SentinelOp.END, UNLESS_CONTAINED if unless_contained else 0), [])
                await (self.decided if unless_contained else self.gone).wait()
                return
            log.error("sentinel.kill", gpu=self.gpu, pid=self._process and self._process.pid, why="it did not end by itself")
            if self._process is not None:
                with suppress(OSError):
                    processes.kill(self._process)  # its client dies with it
                await self.gone.wait()

    def _take(self, report: SentinelReport) -> None:
        match report.kind:
            case SentinelKind.STARTED:
                self.client_pid = report.pid
                self._process = processes.find(report.count)
                self.known.set()
            case SentinelKind.ARMED:
                self.is_armed = True
            case SentinelKind.FAILED:
                self.why = report.why
        self._hear(self, report)
        if report.kind is SentinelKind.FAULT:
            self.decided.set()

    async def _receive(self) -> bytes:
        """Return the next report; those that have arrived come without a wait: an adopted domain's state depends on them."""
        while True:
            with suppress(BlockingIOError, ConnectionResetError):  # reset: it ended with a request unread; its reports follow
                return self._peer.recv(REPORT_BYTES + 1, _AT_ONCE)
            await trio.lowlevel.wait_readable(self._peer)  # for ever: until it reports or ends

    async def _send_process(self, op: SentinelOp, process: ProcessId) -> bool:
        """Return whether the process lived and could be named."""
        try:
            pidfd = processes.open_pidfd(process)
        except OSError as exc:
            if process not in self._unnamed:
                self._unnamed.add(process)
                log.error("sentinel.not_told", gpu=self.gpu, pid=process.pid, why=exc.strerror)
            return False
        if pidfd is None:
            return False
        try:
            await self._send(pack_request(op, process.pid), [pidfd])
        finally:
            os.close(pidfd)
        return True

    async def _send(self, data: bytes, descriptors: list[int]) -> None:
        """Send one datagram, unless the program does not read or has gone."""
        async with self._sending:
            with trio.move_on_after(_SEND_SECONDS) as waiting:
                while not self.gone.is_set():
                    try:
                        socket.send_fds(self._peer, [data], descriptors, _AT_ONCE)
                        return
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(self._peer)
                    except OSError:
                        return
            if waiting.cancelled_caught:
                log.error("sentinel.not_told", gpu=self.gpu, why=f"it does not read for {_SEND_SECONDS:g} s")

    def _close(self) -> None:
        trio.lowlevel.notify_closing(self._peer)
        self._peer.close()
        self.is_armed = False
        self.known.set()
        self.decided.set()
        self.gone.set()
        if self._process is not None:
            processes.collect(self._process.pid)
