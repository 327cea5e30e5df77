"""mpsd's side of the keeper (native/include/mpsd_keeper.h is the protocol).

The keeper holds the listening sockets and every open client connection, so that `kill -9` of mpsd closes none of them: CUDA
silently runs without MPS when its control connection is closed.
"""

import array
import os
import socket
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from mpsd.errors import KeeperFailed, ProtocolError
from mpsd.host import datagrams, processes
from mpsd.host.arrivals import Arrival, accept_for
from mpsd.host.child import Child
from mpsd.host.inspector import Inspector
from mpsd.keeper.messages import REPLY_BYTES, KeeperOp, Reply, Status, pack_request, parse_reply
from mpsd.keeper.process import connect_keeper, find_unreachable, start_keeper
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()

# The kernel's queue of requests that the keeper has not read: enough for 4096 connections that end, or go to a new keeper, at
# once.  The default, 208 KiB, is full at some 270.
_QUEUED_BYTES = 8 << 20
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h
_SECONDS = 5.0  # the keeper answers in microseconds, unless it is stopped or dead
_END_SECONDS = 1.0  # after SIGKILL


class KeeperClient:
    """Guards the connection to the keeper.  `accept`, `hold` and `drop` never wait.

    A keeper that does not keep up is reported as lost, and its successor gets everything.
    """

    def __init__(self, inspector: Inspector, program: Path, path: Path, max_descriptors: int) -> None:
        self._inspector = inspector
        self._program = program
        self._path = path
        self._max = max_descriptors
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._catching_up = trio.Lock()  # only one task may wait for a socket, and two public methods do
        self._process: Child | None = None
        self._unreachable: list[ProcessId] = []
        self.pid = 0  # of the keeper that answered last; 0: none has
        self._keeper: ProcessId | None = None  # the same; None: not known

    @property
    def is_there(self) -> bool:
        return self._socket is not None

    def open(self) -> bool:
        """Connect to the running keeper, or start one.  True: it ran before, and may hold an earlier mpsd's descriptors.

        Raises KeeperFailed.
        """
        self.close()
        if self._connect():
            return True
        self._process = start_keeper(self._inspector, self._program, self._path, self._max)
        if not self._connect():
            raise KeeperFailed(f"{self._program} was started and does not answer at {self._path}")
        return False

    def find_unreachable(self) -> None:
        """Find an earlier mpsd's keeper after its socket was removed.  Call it before `open`.

        It ends with `stop`: if it ended earlier, the clients of the connections that it holds would run without MPS.
        """
        self._unreachable = list(find_unreachable(self._program, self._path).values())
        for keeper in self._unreachable:
            effect = "clients that waited when the state directory was removed wait until `quit`: end them and start them again"
            log.error("keeper.unreachable", pid=keeper.pid, effect=effect)

    async def replace(self) -> None:
        """Open a successor, as `open` does, in a thread.  Until then mpsd alone holds everything.  Raises KeeperFailed.

        A keeper that was stopped, and now is another one's predecessor, is killed: it would keep open what mpsd closes.
        """
        self.close()
        successor = KeeperClient(self._inspector, self._program, self._path, self._max)
        await run_in_thread(successor.open)  # not abandoned: it ends within seconds, and may have started a process
        if successor.pid != self.pid:
            self._kill()
        self._socket, self._sequence, self.pid = successor._socket, successor._sequence, successor.pid
        self._keeper = successor._keeper
        if successor._process is not None:
            if self._process is not None:
                os.close(self._process.pidfd)  # it is stopped, or is ending: the reaper of orphans takes it later
            self._process = successor._process

    def accept(self, listener: socket.socket, name: str, note: int = 0) -> Arrival | None:
        """Accept a connection at the non-blocking `listener`, and give it to the keeper in the same call.

        So `kill -9` of mpsd cannot come in between and close it.  None if the waiting connections had hung up; the keeper gets
        no connection that has.  Raises OSError if none was accepted.
        """
        request = self._pack(KeeperOp.PUT, name, generation=1, size=note)
        arrival, lost = accept_for(listener, -1 if self._socket is None else self._socket.fileno(), request)
        if lost:
            self._lose(KeeperOp.PUT, os.strerror(lost))
        return arrival

    async def until_it_keeps_up(self) -> None:
        """Wait until the keeper has read most requests, or is lost: it has not for some seconds."""
        async with self._catching_up:
            if self._socket is None:
                return
            with suppress(OSError, trio.ClosedResourceError), trio.move_on_after(_SECONDS) as waiting:
                await trio.lowlevel.wait_writable(self._socket)
            if waiting.cancelled_caught and self._socket is not None:
                self._lose(KeeperOp.PUT, f"it has not kept up for {_SECONDS:g} s")

    def hold(self, name: str, end: socket.socket, note: int = 0, generation: int = 1) -> None:
        """Give the keeper a copy of a descriptor, and a number that comes back with it; no reply is awaited.

        A higher generation replaces a lower one of the same name.
        """
        self._tell(KeeperOp.PUT, name, generation=generation, size=note, descriptor=end.fileno())

    def drop(self, name: str) -> None:
        self._tell(KeeperOp.DROP, name)

    def held(self) -> list[tuple[str, socket.socket, int]]:
        """Return everything it holds: name, descriptor, note.  Raises KeeperFailed."""
        found: list[tuple[str, socket.socket, int]] = []
        for name in self._names():
            reply, descriptors = self._ask(KeeperOp.GET, name)
            if reply.status == Status.OK and descriptors:
                found.append((name, socket.socket(fileno=descriptors[0]), reply.size))
            else:  # mpsd, or the keeper, may open no more; if the keeper closed it, its client would run without MPS
                effect = "a client whose connection it is waits: end it and start it again"
                log.error("keeper.not_returned", name=name, status=reply.status, effect=effect)
        return found

    def stop(self) -> None:
        """End the keeper, which closes its descriptors; connections close unless other processes hold them too."""
        try:
            self._ask(KeeperOp.STOP)
        except KeeperFailed:
            pass  # it has already ended
        self.close()
        for keeper in self._unreachable:
            with suppress(OSError):
                processes.kill(keeper)
        with suppress(OSError):  # as on a disk that became read-only; the next keeper replaces it
            self._path.unlink(missing_ok=True)
        if self._process is not None:
            if not self._process.has_ended(_SECONDS):
                self._process.kill()
            if self._process.has_ended(_END_SECONDS):
                self._process.reap()
            else:  # it closes a client's file, and the file server does not answer: it ends when that does, and init takes it
                log.error("keeper.kept_waiting", pid=self._process.pid)
                os.close(self._process.pidfd)
            self._process = None

    async def wait_lost(self) -> None:
        """Return when the keeper has died or hung up, or was closed; log the refusals that come before."""
        while self._socket is not None:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                reply = parse_reply(self._socket.recv(REPLY_BYTES))
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError, ProtocolError):
                break
            log.warning("keeper.refused", op=reply.op, name=reply.name, status=reply.status)
        if self._process is not None and self._process.has_ended():
            self._process.reap()
            self._process = None

    def kill(self) -> None:
        """Kill the keeper, whose socket was removed: a successor, which the next mpsd can reach, gets everything."""
        if self._socket is not None:
            self._kill()

    def _kill(self) -> None:
        if self._keeper is not None:
            with suppress(OSError):
                processes.kill(self._keeper)

    def close(self) -> None:
        if self._socket is not None:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(self._socket)  # otherwise wait_lost would wait on the next owner of this number
            self._socket.close()
            self._socket = None

    # -- the protocol ------------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        try:
            self._socket = connect_keeper(self._path, _SECONDS)
        except KeeperFailed:
            return False
        if self._socket is None:
            return False
        _make_room(self._socket)
        try:
            reply, _ = self._ask(KeeperOp.HELLO)
            if not reply.status:
                self.pid = self._ask(KeeperOp.STAT)[0].keeper_pid()
                self._keeper = processes.find(self.pid)
        except (KeeperFailed, ProtocolError):
            self.close()
            return False
        if reply.status:
            self.close()
            raise KeeperFailed(f"the keeper at {self._path} refuses mpsd with status {reply.status}: is it of another version?")
        return True

    def _names(self) -> list[str]:
        names: list[str] = []
        while True:
            reply, _ = self._ask(KeeperOp.LIST, names[-1] if names else "")
            names += [entry.name for entry in reply.entries()]
            if not reply.has_more:
                return names

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        return self._sequence

    def _tell(self, op: KeeperOp, name: str, generation: int = 0, size: int = 0, descriptor: int | None = None) -> None:
        if self._socket is None:
            return
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        request = self._pack(op, name, generation, size)
        try:
            self._socket.sendmsg([request], rights, socket.MSG_NOSIGNAL)
        except OSError as exc:
            self._lose(op, os.strerror(exc.errno or 0))

    def _pack(self, op: KeeperOp, name: str, generation: int, size: int) -> bytes:
        return pack_request(op, self._next_sequence(), name, is_quiet=True, generation=generation, size=size)

    def _lose(self, op: KeeperOp, why: str) -> None:
        """Shut the connection down: wait_lost notices, and a successor gets everything."""
        log.error("keeper.lost", why=why, op=op.name)
        assert self._socket is not None, "it was told something"
        self._socket.shutdown(socket.SHUT_RDWR)

    def _ask(self, op: KeeperOp, name: str = "") -> tuple[Reply, list[int]]:
        """Send one request; return its reply and descriptors, within a few seconds.  Raises KeeperFailed."""
        if self._socket is None:
            raise KeeperFailed(f"no connection to the keeper at {self._path}")
        sequence = self._next_sequence()
        self._socket.settimeout(_SECONDS)
        try:
            self._socket.send(pack_request(op, sequence, name), socket.MSG_NOSIGNAL)
            while True:
                found = datagrams.receive_now(self._socket, REPLY_BYTES)
                reply = parse_reply(found.data)
                if reply.sequence == sequence:
                    return reply, found.descriptors.take()
        except (OSError, ProtocolError) as exc:
            raise KeeperFailed(f"the keeper at {self._path} did not answer {op.name}: {exc}") from None
        finally:
            self._socket.settimeout(0)  # with a timeout Python waits also in a call with MSG_DONTWAIT


def _make_room(end: socket.socket) -> None:
    """Enlarge the send buffer; only root may exceed net.core.wmem_max."""
    try:
        end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _QUEUED_BYTES)
    except PermissionError:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUED_BYTES)
