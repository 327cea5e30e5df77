"""Talk to one keeper that holds GPU memory: the same program as the relay's, in a process and with a socket of its own.

    absent  --start-->  open  --no answer-->  silent  --it answers again-->  open
                          |                     |
                          `---------------------`--no process listens any more-->  gone, and what it held is lost

Whenever mpsd reaches it, mpsd lists what it holds, which settles every request that was pending at a failure.  There may be
several keepers: memory_keepers.py.  Prose: docs/vault.md.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import structlog
import trio
from msgspec import Struct

from mpsd.errors import KeeperFailed, NoRoom, ProtocolError
from mpsd.host import processes
from mpsd.host.descriptors import close_soon
from mpsd.host.process_exit import wait_ended
from mpsd.keeper.link import SECONDS, HungUp, KeeperLink, KeeperRequest
from mpsd.keeper.messages import KeeperOp, Reply, Status
from mpsd.keeper.process import connect_keeper
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_PROGRAM = "mpsd-keeper"
_TURN = 1024  # requests; then other tasks may use it
_ENDING_SECONDS = 0.01
_AGAIN_SECONDS = 2.0  # until mpsd asks a silent one again


class KeeperGone(KeeperFailed):
    """No process listens at its socket: what it held is lost."""


class Item(Struct, frozen=True):
    """A descriptor, which stays the caller's, and a number that is kept with it."""

    name: str
    descriptor: int
    size: int


class KeeperOwner(Protocol):
    """The owner of the keepers.  Its methods neither wait nor raise."""

    def known(self, number: int) -> ProcessId | None:
        """Return the process that last answered as the keeper of this number, also to an earlier mpsd."""

    def met(self, number: int, process: ProcessId) -> None:
        """Note that another process answers as this keeper."""

    def listed(self, keeper: "VaultKeeper") -> None:
        """Take note that the keeper was reached, perhaps again, and that it holds `names`."""

    def gone(self, keeper: "VaultKeeper") -> None:
        """Take note that the keeper has ended; called once."""


class VaultKeeper:
    """Guards that one task at a time uses the connection, and that the keeper holds everything that `put` returned from.

    mpsd ends a keeper that lives without its socket: no process can use it, and only its end frees its memory.
    """

    def __init__(self, number: int, path: Path, most: int, owner: KeeperOwner) -> None:
        self.number = number
        self.pid = known.pid if (known := owner.known(number)) else 0  # 0: not known
        self.most_held = most  # what the kernel's limits let it hold, once it was reached
        self.names: set[str] = set()  # what it holds
        self.reserved = 0  # descriptors that are being sent to it
        self.is_listed = False  # once, to this mpsd
        self.is_silent = False  # it does not answer: only `watch` and `reach` wait for it
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

    # -- requests --------------------------------------------------------------------------------------------------------

    async def start(self, launch: Callable[[], Awaitable[None]]) -> None:
        """Reach the keeper; call `launch` to start its process if none runs.  Raise KeeperFailed."""
        async with self._lock:
            if await self._connect():
                return
            self._end()
            await launch()
            if not await self._connect():
                raise KeeperFailed(f"a keeper was started and does not answer at {self._path}")

    async def reach(self) -> None:
        """Reach the keeper, even one that was silent.  Raise KeeperGone or KeeperFailed."""
        async with self._lock:
            await self._open()

    async def put(self, items: Sequence[Item]) -> None:
        """Store the items: when this returns, the keeper holds all of them; after an error, none.

        Raise KeeperGone, KeeperFailed or NoRoom.  No other task runs between the last confirmation and the return.
        """
        async with self._talk():
            replies = await self._ask([KeeperRequest(KeeperOp.PUT, item.name, item.descriptor, item.size) for item in items])
            refused = [reply for reply, _ in replies if reply.op == KeeperOp.PUT and reply.status != Status.OK]
            if not refused:
                self.names.update(item.name for item in items)
                return
            await self._ask([KeeperRequest(KeeperOp.DROP, item.name) for item in items])
        if any(reply.status in (Status.FULL, Status.NO_ROOM) for reply in refused):
            raise NoRoom(f"the vault's keeper, pid {self.pid}, holds {len(self.names)} descriptors, and takes no more")
        raise KeeperFailed(f"the vault's keeper refused a descriptor with status {refused[0].status}")

    async def get(self, names: Sequence[str]) -> list[int]:
        """Return a duplicate of each.  Raise KeeperFailed, also if one is missing."""
        async with self._talk():
            replies = await self._ask([KeeperRequest(KeeperOp.GET, name) for name in names])
        found = [descriptor for _, descriptors in replies for descriptor in descriptors]
        if len(found) == len(names):
            return found
        close_soon(found)
        raise KeeperFailed(f"the vault's keeper gave {len(found)} of {len(names)} descriptors")

    async def drop(self, names: Sequence[str]) -> None:
        """Close these in the keeper before this returns; missing ones are no error.

        Raise KeeperFailed; then mpsd lists them when it reaches the keeper again.
        """
        for start in range(0, len(names), _TURN):
            some = names[start : start + _TURN]
            async with self._talk():
                await self._ask([KeeperRequest(KeeperOp.DROP, name) for name in some])
                self.names.difference_update(some)

    async def stop(self) -> None:
        """End it, and so close everything that it holds."""
        with suppress(KeeperFailed):  # it is ended in any case
            async with self._talk():
                await self._ask([KeeperRequest(KeeperOp.STOP)])
                await self._link.see_end()
        self.is_gone = True
        self._end()
        async with self._lock:
            self._link.close()

    async def watch(self) -> None:
        """Detect its death, and reach it again when it hung up or was silent.  Runs until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reach_again)
            await self._met.wait()  # for ever: it may never answer
            known = self._owner.known(self.number)
            if known is not None and known.pid == self.pid:  # else it had already ended when it was met
                await wait_ended(known)  # for ever: as long as it lives
            nursery.cancel_scope.cancel()
        async with self._lock:
            self._lose()

    def close(self) -> None:
        """Close the connection; the keeper continues to run."""
        self._link.close()

    # -- connection ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[None]:
        """Use the connection.  Fails at once if the keeper is known to be silent, also after a wait for another task."""
        self._check_not_silent()
        async with self._lock:
            self._check_not_silent()
            await self._open()
            yield

    def _check_not_silent(self) -> None:
        if self.is_silent:
            raise KeeperFailed(f"the vault's keeper {self.number}, pid {self.pid}, does not answer")

    async def _ask(self, requests: Sequence[KeeperRequest]) -> list[tuple[Reply, list[int]]]:
        try:
            return await self._link.exchange(requests)
        except KeeperFailed as exc:
            self._fail(exc)
            raise

    def _fail(self, exc: KeeperFailed) -> None:
        """Close the connection after a failure.  A keeper that hung up may still run: it is asked again at once."""
        self._link.close()
        was_silent, self.is_silent = self.is_silent, not isinstance(exc, HungUp)
        if self.is_silent and not was_silent:
            log.error("vault.keeper_silent", number=self.number, pid=self.pid, why=str(exc))
        self._broken.set()

    async def _open(self) -> None:
        """Connect if necessary.  Raise KeeperGone or KeeperFailed."""
        if self.is_gone:
            raise KeeperGone(f"the vault's keeper {self.number} has ended")
        if self._link.is_open or await self._connect():
            return
        self._lose()
        raise KeeperGone(f"no process listens at {self._path} any more")

    async def _connect(self) -> bool:
        """Connect and list.  Return False if no process listens.  Raise KeeperFailed."""
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
        [(stat, _)] = await self._link.exchange([KeeperRequest(KeeperOp.STAT)])
        self.pid, self.most_held = stat.keeper_pid(), stat.most_held()
        self._meet_process()
        self.names = set(await self._list())
        self.is_listed, self.is_silent = True, False
        self._met.set()
        if self._broken.is_set():
            self._broken = trio.Event()
        self._owner.listed(self)

    def _meet_process(self) -> None:
        """Note which process answers.  Raise KeeperFailed if a new one cannot be read: mpsd could not watch or end it."""
        known = self._owner.known(self.number)
        try:
            found = processes.process_id(self.pid)
        except OSError as exc:
            if known is None or known.pid != self.pid:
                raise KeeperFailed(f"the vault's keeper, pid {self.pid}, cannot be read: {exc.strerror}") from None
            return
        if found is not None and found != known:
            self._owner.met(self.number, found)

    async def _greet(self) -> Reply | None:
        """Return the answer to HELLO; None if no process listens.  One that hangs up is ending, so this tries again."""
        deadline = trio.current_time() + SECONDS
        while (end := connect_keeper(self._path, 0)) is not None:
            self._link.open(end)
            try:
                [(hello, _)] = await self._link.exchange([KeeperRequest(KeeperOp.HELLO)])
                return hello
            except HungUp:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(_ENDING_SECONDS)
        return None

    async def _list(self) -> list[str]:
        """List all names, page by page.  Raise KeeperFailed or ProtocolError."""
        found: list[str] = []
        while True:
            [(reply, _)] = await self._link.exchange([KeeperRequest(KeeperOp.LIST, found[-1] if found else "")])
            found += [entry.name for entry in reply.entries()]
            if not reply.has_more:
                return found

    async def _reach_again(self) -> None:
        while True:
            await self._broken.wait()  # for ever: there may never be a failure
            try:
                await self.reach()
            except KeeperGone:
                return
            except KeeperFailed:
                await trio.sleep(_AGAIN_SECONDS)

    # -- its end ---------------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Record the loss of what it held; once."""
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
        """Kill the keeper if it was reached once and lives, and remove its socket."""
        keeper = self._owner.known(self.number)
        if keeper is not None and processes.is_alive(keeper) and processes.command(keeper.pid) in (_PROGRAM, ""):  # not known
            log.error("vault.keeper_killed", pid=keeper.pid)
            with suppress(OSError):  # the kill is repeated later
                processes.kill(keeper)
        with suppress(OSError):  # the start of the next keeper reports this error
            self._path.unlink(missing_ok=True)
