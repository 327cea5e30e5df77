"""mpsd's side of the keeper that holds GPU memory: the same program as the relay's, in a process and with a socket of its own.

    absent  --something is put-->  open  --no answer, or it hung up-->  closed  --reached again-->  open (compared)
       ^                                                                   |
       `---------------------- nobody listens any more: all is lost <------'

Whenever it is reached, what it holds is compared with what it should hold; so whatever was on its way when something failed is
settled then.  Prose: docs/vault.md.
"""

import array
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from mpsd.errors import KeeperFailed, NoRoom, ProtocolError, Stopping, UnusablePath
from mpsd.runtime.keeper_process import connect_keeper, start_keeper
from mpsd.wire.keeper import REPLY_BYTES, Entry, Op, Reply, Status, pack_request, parse_reply

log = structlog.get_logger()
_SECONDS = 10.0  # it answers in microseconds; closing much GPU memory takes a tenth of a second
_WINDOW = 64  # requests on their way, which neither side's queue of a socket's usual size is too short for
_TURN = 1024  # then others may speak with it
_CROWDED_SECONDS = 0.001
_ENDING_SECONDS = 0.01


class _HungUp(KeeperFailed):
    """It has closed the connection: it is ending, or has ended, or was not answered in time."""


@dataclass(frozen=True, slots=True)
class Item:
    """A descriptor, which stays the caller's, and a number that is kept with it."""

    name: str
    descriptor: int
    size: int


@dataclass(frozen=True, slots=True)
class _Request:
    op: Op
    name: str = ""
    descriptor: int | None = None
    size: int = 0

    @property
    def may_be_quiet(self) -> bool:
        return self.op in (Op.PUT, Op.DROP)


# Given what it holds, by name: names that it should not hold.
Compare = Callable[[Mapping[str, Entry]], Iterable[str]]


class VaultKeeper:
    """Guards that one task at a time speaks with it, and that what `put` returned from is held.

    compare: called without a moment in which others run, whenever it was reached, and with nothing when it has died.
    """

    def __init__(self, program: Path, path: Path, most: int, compare: Compare) -> None:
        self._program = program
        self._path = path
        self._most = most
        self._compare = compare
        self._socket: socket.socket | None = None
        self._processes: list[subprocess.Popen[bytes]] = []  # our children: those that this mpsd started
        self._lock = trio.Lock()
        self._sequence = 0
        self._is_over = False
        self._opened = trio.Event()
        self.pid = 0  # 0: there is none that is known
        self.most_held = most  # what the kernel's limits let it hold

    @property
    def state(self) -> str:
        """"works", or why it does not."""
        if self._socket is not None:
            return "works"
        return "it does not answer" if self.pid else "there is none, and nothing to hold"

    # -- what is asked of it ---------------------------------------------------------------------------------------------

    async def reach(self, handed: Sequence[Item] = ()) -> None:
        """Connect to the one that runs, if one does, and compare; without one, everything is lost but what is handed.

        handed: what an earlier keeper gave to somebody else before it ended.  Raises KeeperFailed.
        """
        async with self._lock:
            if self._socket is not None or await self._connect(handed):
                return
            if handed:
                await self._start(handed)
            else:
                self._compare({})

    async def put(self, items: Sequence[Item]) -> None:
        """All of them are held when this returns, or none.  Starts a keeper where there is none.  Raises KeeperFailed, NoRoom.

        Nothing else runs between the last confirmation and the return.
        """
        async with self._lock:
            await self._open()
            replies = await self._exchange(_puts(items))
            refused = [reply for reply, _ in replies if reply.op == Op.PUT and reply.status != Status.OK]
            if not refused:
                return
            await self._exchange(_drops(item.name for item in items))
        if any(reply.status in (Status.FULL, Status.NO_ROOM) for reply in refused):
            raise NoRoom(f"the vault's keeper can hold {self.most_held} descriptors, and has no room for {len(items)} more")
        raise KeeperFailed(f"the vault's keeper refused a descriptor with status {refused[0].status}")

    async def get(self, names: Sequence[str]) -> list[int]:
        """A duplicate of each.  Raises KeeperFailed, also where one is not there."""
        async with self._lock:
            await self._open()
            replies = await self._exchange([_Request(Op.GET, name) for name in names])
        found = [descriptor for _, descriptors in replies for descriptor in descriptors]
        if len(found) == len(names):
            return found
        for descriptor in found:
            os.close(descriptor)
        raise KeeperFailed(f"the vault's keeper gave {len(found)} of {len(names)} descriptors")

    async def drop(self, names: Iterable[str]) -> None:
        """They are closed when this returns, in it; what is not there is no mistake.  Raises KeeperFailed; then they go when it
        is reached again."""
        requests = _drops(names)
        for start in range(0, len(requests), _TURN):
            async with self._lock:
                if self._socket is None and not await self._connect():
                    return
                await self._exchange(requests[start : start + _TURN])

    async def names(self) -> list[str]:
        """Of all that it holds; empty where there is none.  Raises KeeperFailed."""
        async with self._lock:
            return list(await self._list()) if self._socket is not None or await self._connect() else []

    async def stop(self) -> None:
        """End it, and so close everything it holds.  No other one is started."""
        async with self._lock:
            self._is_over = True
            try:
                if self._socket is not None or await self._connect():
                    await self._exchange([_Request(Op.STOP)])
            except (KeeperFailed, UnusablePath) as exc:
                log.error("vault.keeper_killed", pid=self.pid, why=str(exc))
                self._kill()
            self.pid = 0
            self._close()
            self._path.unlink(missing_ok=True)
            self._collect()

    async def watch(self) -> None:
        """Notices its death.  Until cancelled."""
        while True:
            await self._opened.wait()  # for ever: there may never be one
            self._opened = trio.Event()
            watched = self.pid
            await _see_ended(watched)  # for ever: as long as it lives
            async with self._lock:
                if self.pid == watched:  # else whoever found it dead has started another
                    log.error("vault.keeper_died", pid=watched)
                    self.pid = 0
                    self._close()
                    self._lose_all()
                self._collect()

    def close(self) -> None:
        """Leave it alone; it goes on."""
        self._close()

    # -- reaching it -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._socket is not None or await self._connect():
            return
        self._compare({})
        await self._start()

    async def _start(self, handed: Sequence[Item] = ()) -> None:
        if self._is_over:
            raise Stopping("mpsd is quitting, and its vault has ended")
        self._collect()
        self._processes.append(start_keeper(self._program, self._path, self._most))
        if not await self._connect(handed):
            raise KeeperFailed(f"{self._program} was started and does not answer at {self._path}")

    async def _connect(self, handed: Sequence[Item] = ()) -> bool:
        """False: nobody listens.  Raises KeeperFailed for one that does not answer."""
        hello = await self._greet()
        if hello is None:
            return False
        if hello.status:
            self._close()
            raise KeeperFailed(f"the keeper at {self._path} refuses mpsd with status {hello.status}: is it of another version?")
        [(stat, _)] = await self._exchange([_Request(Op.STAT)])
        self.pid, self.most_held = stat.keeper_pid(), stat.most_held()
        await self._exchange(_puts(handed))
        await self._settle(await self._list())
        if self.most_held < self._most:
            log.warning("vault.few_descriptors", wanted=self._most, found=self.most_held)
        self._opened.set()
        return True

    async def _greet(self) -> Reply | None:
        """The answer to HELLO; None where nobody listens.  One that hangs up is ending: whether it has is asked again."""
        deadline = trio.current_time() + _SECONDS
        while (end := connect_keeper(self._path, 0)) is not None:
            self._socket = end
            try:
                [(hello, _)] = await self._exchange([_Request(Op.HELLO)])
                return hello
            except _HungUp:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(_ENDING_SECONDS)
        return None

    async def _settle(self, held: Mapping[str, Entry]) -> None:
        try:
            surplus = self._compare(held)
        except BaseException:
            self._close()  # nothing is asked of one that was not compared
            raise
        await self._exchange(_drops(surplus))

    async def _list(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        last = ""
        while True:
            [(reply, _)] = await self._exchange([_Request(Op.LIST, last)])
            for entry in reply.entries():
                found[entry.name] = entry
                last = entry.name
            if not reply.has_more:
                return found

    def _lose_all(self) -> None:
        try:
            self._compare({})
        except UnusablePath as exc:  # whoever asks for something next is told, until it can be stored
            log.error("store.failed", statement="what the vault's keeper held", why=str(exc))

    def _kill(self) -> None:
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _collect(self) -> None:
        """So that those that have ended are no zombies."""
        self._processes = [process for process in self._processes if process.poll() is None]

    def _close(self) -> None:
        if self._socket is not None:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._socket = None

    # -- speaking --------------------------------------------------------------------------------------------------------

    async def _exchange(self, requests: Sequence[_Request]) -> list[tuple[Reply, list[int]]]:
        """The replies that came, and the descriptors with them.  Not to be cancelled half way: what was sent is done.

        Raises KeeperFailed, and then the connection is closed, and nothing that came is left open."""
        replies: list[tuple[Reply, list[int]]] = []
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _SECONDS) as scope:
                for start in range(0, len(requests), _WINDOW):
                    await self._exchange_some(requests[start : start + _WINDOW], replies)
                    scope.deadline = trio.current_time() + _SECONDS
            if not scope.cancelled_caught:
                return replies
            failure = KeeperFailed(f"the vault's keeper at {self._path} is silent for {_SECONDS:g} s")
        except ConnectionError as exc:
            failure = _HungUp(f"the vault's keeper at {self._path} hung up: {exc}")
        except (OSError, ProtocolError) as exc:
            failure = KeeperFailed(f"the vault's keeper at {self._path} did not answer: {exc}")
        self._close()
        for _, descriptors in replies:
            for descriptor in descriptors:
                os.close(descriptor)
        raise failure

    async def _exchange_some(self, requests: Sequence[_Request], replies: list[tuple[Reply, list[int]]]) -> None:
        """Those that may be are quiet but for the last one, whose reply says that the others were carried out or refused."""
        last = 0
        for request in requests:
            self._sequence = last = (self._sequence + 1) & 0xFFFFFFFF
            data = pack_request(
                request.op,
                last,
                request.name,
                is_quiet=request.may_be_quiet and request is not requests[-1],
                generation=1 if request.op is Op.PUT else 0,
                size=request.size,
            )
            await self._send(data, request.descriptor)
        while not replies or replies[-1][0].sequence != last:
            replies.append(await self._receive())

    async def _send(self, data: bytes, descriptor: int | None) -> None:
        assert self._socket is not None, "nothing is said before it is reached"
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        while True:
            try:
                self._socket.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as exc:
                if exc.errno != errno.ETOOMANYREFS:
                    raise
                await trio.sleep(_CROWDED_SECONDS)

    async def _receive(self) -> tuple[Reply, list[int]]:
        assert self._socket is not None, "nothing is heard before it is reached"
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, REPLY_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
        if not data:
            raise ConnectionResetError("the end came")
        try:
            return parse_reply(data), list(descriptors)
        except ProtocolError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise


def _puts(items: Iterable[Item]) -> list[_Request]:
    return [_Request(Op.PUT, item.name, item.descriptor, item.size) for item in items]


def _drops(names: Iterable[str]) -> list[_Request]:
    return [_Request(Op.DROP, name) for name in names]


async def _see_ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return  # nothing of it is left
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
