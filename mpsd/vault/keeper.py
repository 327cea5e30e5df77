"""mpsd's side of the keeper that holds GPU memory: the same program as the relay's, in a process and with a socket of its own.

    absent  --something is put-->  open  --no answer, or it hung up-->  closed  --reached again-->  open (compared)
       ^                                                                   |
       `---------------------- nobody listens any more: all is lost <------'

Whenever it is reached, what it holds is compared with what it should hold; so whatever was on its way when something failed is
settled then.  Prose: docs/vault.md.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
import trio

from mpsd import processes
from mpsd.errors import KeeperFailed, NoRoom, ProtocolError, Stopping, UnusablePath
from mpsd.model import ProcessId
from mpsd.runtime.keeper_process import connect_keeper, start_keeper
from mpsd.vault.keeper_link import SECONDS, HungUp, KeeperLink, Request
from mpsd.wire.keeper import Entry, Op, Reply, Status

log = structlog.get_logger()
_TURN = 1024  # then others may speak with it
_ENDING_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Item:
    """A descriptor, which stays the caller's, and a number that is kept with it."""

    name: str
    descriptor: int
    size: int


# Given what it holds, by name: names that it should not hold.
Compare = Callable[[Mapping[str, Entry]], Iterable[str]]


class Memory(Protocol):
    """Which keeper was reached last, also by an mpsd before; raises UnusablePath."""

    def keeper(self) -> ProcessId | None: ...
    def save_keeper(self, keeper: ProcessId) -> None: ...


class VaultKeeper:
    """Guards that one task at a time speaks with it, and that what `put` returned from is held.

    One that lives and whose socket is gone is of no use to anybody, and is ended: nothing else gives its memory back.

    compare: called without a moment in which others run, whenever it was reached, and with nothing when it has died.
    """

    def __init__(self, program: Path, path: Path, most: int, compare: Compare, memory: Memory) -> None:
        self._program = program
        self._path = path
        self._most = most
        self._compare = compare
        self._memory = memory
        self._link = KeeperLink()
        self._processes: list[subprocess.Popen[bytes]] = []  # our children: those that this mpsd started
        self._lock = trio.Lock()
        self._is_over = False
        self._opened = trio.Event()
        self.pid = 0  # 0: there is none that is known
        self.most_held = most  # what the kernel's limits let it hold

    @property
    def state(self) -> str:
        """"works", or why it does not."""
        if self._link.is_open:
            return "works"
        return "it does not answer" if self.pid else "there is none, and nothing to hold"

    # -- what is asked of it ---------------------------------------------------------------------------------------------

    async def reach(self, handed: Sequence[Item] = ()) -> None:
        """Connect to the one that runs, if one does, and compare; without one, everything is lost but what is handed.

        handed: what an earlier keeper gave to somebody else before it ended.  Raises KeeperFailed.
        """
        async with self._lock:
            if self._link.is_open or await self._connect(handed):
                return
            self._end_unreachable()
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
            replies = await self._link.exchange(_puts(items))
            refused = [reply for reply, _ in replies if reply.op == Op.PUT and reply.status != Status.OK]
            if not refused:
                return
            await self._link.exchange(_drops(item.name for item in items))
        if any(reply.status in (Status.FULL, Status.NO_ROOM) for reply in refused):
            raise NoRoom(f"the vault's keeper can hold {self.most_held} descriptors, and has no room for {len(items)} more")
        raise KeeperFailed(f"the vault's keeper refused a descriptor with status {refused[0].status}")

    async def get(self, names: Sequence[str]) -> list[int]:
        """A duplicate of each.  Raises KeeperFailed, also where one is not there."""
        async with self._lock:
            await self._open()
            replies = await self._link.exchange([Request(Op.GET, name) for name in names])
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
                if not self._link.is_open and not await self._connect():
                    return
                await self._link.exchange(requests[start : start + _TURN])

    async def names(self) -> list[str]:
        """Of all that it holds; empty where there is none.  Raises KeeperFailed."""
        async with self._lock:
            return list(await self._list()) if self._link.is_open or await self._connect() else []

    async def stop(self) -> None:
        """End it, and so close everything it holds.  No other one is started.  Raises UnusablePath."""
        async with self._lock:
            self._is_over = True
            try:
                if self._link.is_open or await self._connect():
                    await self._link.exchange([Request(Op.STOP)])
                    await self._link.see_end()
            except KeeperFailed as exc:
                log.error("vault.keeper_silent", why=str(exc))
            self._end_unreachable()
            self.pid = 0
            self._link.close()
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
                    self._link.close()
                    self._lose_all()
                self._collect()

    def close(self) -> None:
        """Leave it alone; it goes on."""
        self._link.close()

    # -- reaching it -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._link.is_open or await self._connect():
            return
        self._end_unreachable()
        self._compare({})
        await self._start()

    async def _start(self, handed: Sequence[Item] = ()) -> None:
        if self._is_over:
            raise Stopping("mpsd is quitting, and its vault has ended")
        self._collect()
        self._processes.append(start_keeper(self._program, self._path, self._most, may_store=True))
        if not await self._connect(handed):
            raise KeeperFailed(f"{self._program} was started and does not answer at {self._path}")

    async def _connect(self, handed: Sequence[Item] = ()) -> bool:
        """False: nobody listens.  Raises KeeperFailed for one that does not answer.  Nothing is asked of one that was not
        compared."""
        hello = await self._greet()
        if hello is None:
            return False
        try:
            if hello.status:
                raise KeeperFailed(f"the keeper at {self._path} refuses mpsd with {hello.status}: is it of another version?")
            await self._meet(handed)
        except ProtocolError as exc:
            self._link.close()
            raise KeeperFailed(str(exc)) from None
        except BaseException:
            self._link.close()
            raise
        if self.most_held < self._most:
            log.warning("vault.few_descriptors", wanted=self._most, found=self.most_held)
        self._opened.set()
        return True

    async def _meet(self, handed: Sequence[Item]) -> None:
        [(stat, _)] = await self._link.exchange([Request(Op.STAT)])
        self.pid, self.most_held = stat.keeper_pid(), stat.most_held()
        if (found := processes.process_id(self.pid)) is not None and found != self._memory.keeper():
            self._memory.save_keeper(found)
        await self._link.exchange(_puts(handed))
        surplus = self._compare(await self._list())
        await self._link.exchange(_drops(surplus))

    async def _greet(self) -> Reply | None:
        """The answer to HELLO; None where nobody listens.  One that hangs up is ending: whether it has is asked again."""
        deadline = trio.current_time() + SECONDS
        while (end := connect_keeper(self._path, 0)) is not None:
            self._link.open(end)
            try:
                [(hello, _)] = await self._link.exchange([Request(Op.HELLO)])
                return hello
            except HungUp:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(_ENDING_SECONDS)
        return None

    async def _list(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        last = ""
        while True:
            [(reply, _)] = await self._link.exchange([Request(Op.LIST, last)])
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

    def _end_unreachable(self) -> None:
        """What is known to have been reached once, and lives."""
        keeper = self._memory.keeper()
        if keeper is not None and processes.is_alive(keeper) and processes.program_name(keeper.pid) == self._program.name:
            log.error("vault.keeper_killed", pid=keeper.pid)
            with suppress(ProcessLookupError):
                os.kill(keeper.pid, signal.SIGKILL)

    def _collect(self) -> None:
        """So that those that have ended are no zombies."""
        self._processes = [process for process in self._processes if process.poll() is None]


def _puts(items: Iterable[Item]) -> list[Request]:
    return [Request(Op.PUT, item.name, item.descriptor, item.size) for item in items]


def _drops(names: Iterable[str]) -> list[Request]:
    return [Request(Op.DROP, name) for name in names]


async def _see_ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return  # nothing of it is left
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
