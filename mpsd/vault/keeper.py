"""mpsd's side of one keeper that holds GPU memory: the same program as the relay's, in a process and with a socket of its own.

    absent  --start-->  open  --no answer-->  silent  --it goes on-->  open
                          |                     |
                          `---------------------`--nobody listens any more-->  gone, and what it held is lost

Whenever it is reached, what it holds is listed, so whatever was on its way when something failed is settled then.  There may be
several: keepers.py.  Prose: docs/vault.md.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
import trio

from mpsd import processes
from mpsd.descriptors import close_soon
from mpsd.errors import KeeperFailed, NoRoom, ProtocolError
from mpsd.model import ProcessId
from mpsd.process_watch import wait_ended
from mpsd.runtime.keeper_process import connect_keeper
from mpsd.vault.keeper_link import SECONDS, HungUp, KeeperLink, Request
from mpsd.wire.keeper import Op, Reply, Status

log = structlog.get_logger()
_PROGRAM = "mpsd-keeper"
_TURN = 1024  # then others may speak with it
_ENDING_SECONDS = 0.01
_AGAIN_SECONDS = 2.0  # until one that is silent is asked again


class KeeperGone(KeeperFailed):
    """Nobody listens at its socket: what it held is lost."""


@dataclass(frozen=True, slots=True)
class Item:
    """A descriptor, which stays the caller's, and a number that is kept with it."""

    name: str
    descriptor: int
    size: int


class Owner(Protocol):
    """Who has the keepers.  Nothing of it waits, or raises."""

    def known(self, number: int) -> ProcessId | None:
        """The process that answered last as the keeper of this number, also to an mpsd before."""

    def met(self, number: int, process: ProcessId) -> None:
        """It is another one now."""

    def listed(self, keeper: "VaultKeeper") -> None:
        """It was reached, perhaps again, and `names` are what it holds."""

    def gone(self, keeper: "VaultKeeper") -> None:
        """It has ended; told once."""


class VaultKeeper:
    """Guards that one task at a time speaks with it, and that what `put` returned from is held.

    One that lives and whose socket is gone is of no use to anybody, and is ended: nothing else gives its memory back.
    """

    def __init__(self, number: int, path: Path, most: int, owner: Owner) -> None:
        self.number = number
        self.pid = known.pid if (known := owner.known(number)) else 0  # 0: not known
        self.most_held = most  # what the kernel's limits let it hold, once it was reached
        self.names: set[str] = set()  # what it holds
        self.reserved = 0  # descriptors on their way to it
        self.is_listed = False  # once, to this mpsd
        self.is_silent = False  # it does not answer: nobody but `watch` and `reach` waits for it
        self.is_gone = False
        self._path = path
        self._owner = owner
        self._link = KeeperLink()
        self._lock = trio.Lock()
        self._met = trio.Event()
        self._broken = trio.Event()  # the connection; until the next one

    @property
    def works(self) -> bool:
        return self._link.is_open and not self.is_silent

    @property
    def room(self) -> int:
        return self.most_held - len(self.names) - self.reserved

    # -- what is asked of it ---------------------------------------------------------------------------------------------

    async def start(self, launch: Callable[[], object]) -> None:
        """It is reached.  launch: starts its process, where none is.  Raises KeeperFailed."""
        async with self._lock:
            if await self._connect():
                return
            self._end()
            launch()
            if not await self._connect():
                raise KeeperFailed(f"a keeper was started and does not answer at {self._path}")

    async def reach(self) -> None:
        """Also one that was silent.  Raises KeeperGone, KeeperFailed."""
        async with self._lock:
            await self._open()

    async def put(self, items: Sequence[Item]) -> None:
        """All of them are held when this returns, or none.  Raises KeeperGone, KeeperFailed, NoRoom.

        Nothing else runs between the last confirmation and the return.
        """
        async with self._talk():
            replies = await self._ask([Request(Op.PUT, item.name, item.descriptor, item.size) for item in items])
            refused = [reply for reply, _ in replies if reply.op == Op.PUT and reply.status != Status.OK]
            if not refused:
                self.names.update(item.name for item in items)
                return
            await self._ask([Request(Op.DROP, item.name) for item in items])
        if any(reply.status in (Status.FULL, Status.NO_ROOM) for reply in refused):
            raise NoRoom(f"the vault's keeper, pid {self.pid}, holds {len(self.names)} descriptors, and takes no more")
        raise KeeperFailed(f"the vault's keeper refused a descriptor with status {refused[0].status}")

    async def get(self, names: Sequence[str]) -> list[int]:
        """A duplicate of each.  Raises KeeperFailed, also where one is not there."""
        async with self._talk():
            replies = await self._ask([Request(Op.GET, name) for name in names])
        found = [descriptor for _, descriptors in replies for descriptor in descriptors]
        if len(found) == len(names):
            return found
        close_soon(found)
        raise KeeperFailed(f"the vault's keeper gave {len(found)} of {len(names)} descriptors")

    async def drop(self, names: Sequence[str]) -> None:
        """They are closed when this returns, in it; what is not there is no mistake.  Raises KeeperFailed; then they are listed
        when it is reached again."""
        for start in range(0, len(names), _TURN):
            some = names[start : start + _TURN]
            async with self._talk():
                await self._ask([Request(Op.DROP, name) for name in some])
                self.names.difference_update(some)

    async def listing(self) -> list[str]:
        """All that it holds, as it says itself.  Raises KeeperFailed."""
        async with self._talk():
            return await self._list()

    async def stop(self) -> None:
        """End it, and so close everything it holds."""
        with suppress(KeeperFailed):  # it is ended all the same
            async with self._talk():
                await self._ask([Request(Op.STOP)])
                await self._link.see_end()
        self.is_gone = True
        self._end()
        async with self._lock:
            self._link.close()

    async def watch(self) -> None:
        """Notices its death, and reaches it again when it hung up or was silent.  Until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reach_again)
            await self._met.wait()  # for ever: it may never answer
            known = self._owner.known(self.number)
            if known is not None and known.pid == self.pid:  # else nothing was left of it when it was met
                await wait_ended(known)  # for ever: as long as it lives
            nursery.cancel_scope.cancel()
        async with self._lock:
            self._lose()

    def close(self) -> None:
        """Leave it alone; it goes on."""
        self._link.close()

    # -- reaching it -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[None]:
        """Nobody waits for one that is known to be silent, nor for whoever waits for it."""
        self._check_not_silent()
        async with self._lock:
            self._check_not_silent()
            await self._open()
            yield

    def _check_not_silent(self) -> None:
        if self.is_silent:
            raise KeeperFailed(f"the vault's keeper {self.number}, pid {self.pid}, does not answer")

    async def _ask(self, requests: Sequence[Request]) -> list[tuple[Reply, list[int]]]:
        try:
            return await self._link.exchange(requests)
        except KeeperFailed as exc:
            self._fail(exc)
            raise

    def _fail(self, exc: KeeperFailed) -> None:
        """One that hung up may be there, or be gone: it is asked again at once."""
        self._link.close()
        was_silent, self.is_silent = self.is_silent, not isinstance(exc, HungUp)
        if self.is_silent and not was_silent:
            log.error("vault.keeper_silent", number=self.number, pid=self.pid, why=str(exc))
        self._broken.set()

    async def _open(self) -> None:
        """Raises KeeperGone, KeeperFailed."""
        if self.is_gone:
            raise KeeperGone(f"the vault's keeper {self.number} has ended")
        if self._link.is_open or await self._connect():
            return
        self._lose()
        raise KeeperGone(f"nobody listens at {self._path} any more")

    async def _connect(self) -> bool:
        """False: nobody listens.  Nothing is asked of one that was not listed.  Raises KeeperFailed."""
        try:
            if (hello := await self._greet()) is None:
                return False
            if hello.status:
                raise KeeperFailed(f"the keeper at {self._path} refuses mpsd with {hello.status}: is it of another version?")
            await self._meet()
        except (KeeperFailed, ProtocolError) as exc:
            failure = exc if isinstance(exc, KeeperFailed) else KeeperFailed(str(exc))
            self._fail(failure)
            raise failure from None
        except BaseException:
            self._link.close()
            raise
        return True

    async def _meet(self) -> None:
        [(stat, _)] = await self._link.exchange([Request(Op.STAT)])
        self.pid, self.most_held = stat.keeper_pid(), stat.most_held()
        if (found := processes.process_id(self.pid)) is not None and found != self._owner.known(self.number):
            self._owner.met(self.number, found)
        self.names = set(await self._list())
        self.is_listed, self.is_silent = True, False
        self._met.set()
        if self._broken.is_set():
            self._broken = trio.Event()
        self._owner.listed(self)

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

    async def _list(self) -> list[str]:
        """Raises KeeperFailed, ProtocolError."""
        found: list[str] = []
        while True:
            [(reply, _)] = await self._link.exchange([Request(Op.LIST, found[-1] if found else "")])
            found += [entry.name for entry in reply.entries()]
            if not reply.has_more:
                return found

    async def _reach_again(self) -> None:
        while True:
            await self._broken.wait()  # for ever: nothing may ever fail
            try:
                await self.reach()
            except KeeperGone:
                return
            except KeeperFailed:
                await trio.sleep(_AGAIN_SECONDS)

    # -- its end ---------------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """What it held; once."""
        if self.is_gone:
            return
        self.is_gone = True
        if self.is_listed:
            log.error("vault.keeper_died", pid=self.pid, number=self.number, held=len(self.names))
        self.names = set()
        self._link.close()
        self._end()
        self._met.set()
        self._owner.gone(self)

    def _end(self) -> None:
        """What is known to have been reached once, and lives."""
        keeper = self._owner.known(self.number)
        if keeper is not None and processes.is_alive(keeper) and processes.command(keeper.pid) == _PROGRAM:
            log.error("vault.keeper_killed", pid=keeper.pid)
            with suppress(OSError):  # it is asked again, and again
                processes.kill(keeper)
        with suppress(OSError):  # who starts the next one is told
            self._path.unlink(missing_ok=True)
