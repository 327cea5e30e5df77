"""Manage all keepers of the vault's memory: one process can open only a limited number of files, and there may be more memory.

    vault-keeper  vault-keeper-1  ...      their sockets; one is started when those before are full

When a keeper dies, each arena with a part in it is lost as a whole; the others are not affected.  A name is in at most one
keeper: names are given once, and a put goes to one.  Prose: docs/vault.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import trio

from mpsd.errors import KeeperFailed, NoRoom, Stopping, UnusablePath
from mpsd.host.child import Child
from mpsd.host.descriptors import close_soon
from mpsd.host.inspector import Inspector
from mpsd.keeper.memory_keeper import Item, KeeperGone, VaultKeeper
from mpsd.keeper.process import find_unreachable, start_keeper
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
MOST_KEEPERS = 64
_AGAIN_SECONDS = 5.0  # until a failed store is tried again

# Called with all held names, and whether all keepers were listed; returns the names that should not be held.
Compare = Callable[[Collection[str], bool], Iterable[str]]


class KeeperRecord(Protocol):
    """The keepers that were reached last, by number, also by an earlier mpsd; raises UnusablePath."""

    def keepers(self) -> Mapping[int, ProcessId]: ...
    def save_keeper(self, number: int, keeper: ProcessId) -> None: ...


class VaultKeepers:
    """Guards that a keeper holds everything that `put` returned from, and that store and keepers are compared.

    most: descriptors that all of them should be able to hold.  compare: called whenever a keeper was reached again or has died,
    before other tasks run; may raise UnusablePath.
    """

    def __init__(
        self, inspector: Inspector, program: Path, path: Path, most: int, compare: Compare, memory: KeeperRecord
    ) -> None:
        """Load the known keepers.  Raise UnusablePath."""
        self._inspector = inspector
        self._program = program
        self._path = path
        self._most = most
        self._compare_with = compare
        self._memory = memory
        unreachable = find_unreachable(program, path)  # ended in `reach`: what they hold belongs to no arena that mpsd knows
        reached = dict(memory.keepers())
        unknown = {_number_of(name): process for name, process in unreachable.items() if process not in reached.values()}
        self._known = unknown | reached
        self._keepers: dict[int, VaultKeeper] = {}
        self._processes: list[Child] = []  # our children: those that this mpsd started
        self._starting = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._is_begun = False  # the running keepers were reached
        self._is_over = False
        self._surplus: list[str] = []
        self._is_uncompared = False  # the result could not be stored
        self._work = trio.Event()

    @property
    def state(self) -> str:
        """"works", or why not all of them do."""
        if not self._keepers:
            return "none runs, since the vault is empty"
        silent = sum(not keeper.works for keeper in self._keepers.values())
        if not silent:
            return "works"
        return "it does not answer" if len(self._keepers) == 1 else f"{silent} of {len(self._keepers)} do not answer"

    @property
    def pid(self) -> int:
        """The pid of the first one; 0: no keeper runs."""
        return next(iter(self.pids), 0)

    @property
    def pids(self) -> list[int]:
        return [keeper.pid for _, keeper in sorted(self._keepers.items()) if keeper.pid]

    @property
    def held(self) -> int:
        return sum(len(keeper.names) for keeper in self._keepers.values())

    # -- requests --------------------------------------------------------------------------------------------------------

    async def reach(self) -> None:
        """Connect to the running keepers, and compare: memory that no keeper has is lost.  Raise KeeperFailed."""
        self._find()
        async with trio.open_nursery() as nursery:
            for keeper in list(self._keepers.values()):
                nursery.start_soon(_reach, keeper)
        self._is_begun = True
        self._compare()
        await self._give_back()

    async def put(self, items: Sequence[Item], beside: str | None = None) -> None:
        """Store the items: when this returns, a keeper holds all of them; after an error, none.

        Starts a keeper if all others are full.  beside: a name; the items go to the keeper that has it, if they fit.  Raise
        KeeperFailed or NoRoom.  No other task runs between the last confirmation and the return.
        """
        for _ in range(MOST_KEEPERS):
            keeper = await self._with_room(len(items), beside)
            keeper.reserved += len(items)
            try:
                return await keeper.put(items)
            except KeeperGone:
                continue
            finally:
                keeper.reserved -= len(items)
        raise KeeperFailed("the vault's keepers die as soon as they are started")

    async def get(self, names: Sequence[str]) -> list[int]:
        """Return a duplicate of each.  Raise KeeperFailed, also if one is missing, or its keeper does not answer."""
        found: dict[str, int] = {}
        try:
            for keeper, some in self._by_keeper(names):
                found.update(zip(some, await keeper.get(some), strict=True))
            if missing := [name for name in names if name not in found]:
                raise KeeperFailed(f"no keeper of the vault that answers has {missing[0]}")
        except BaseException:
            close_soon(list(found.values()))
            raise
        return [found[name] for name in names]

    async def drop(self, names: Iterable[str]) -> None:
        """Close these in their keepers before this returns; missing ones are no error.

        Raise KeeperFailed if a keeper does not answer; then they are dropped when it is reached again.
        """
        failure: KeeperFailed | None = None
        for keeper, some in self._by_keeper(list(names)):
            try:
                await keeper.drop(some)
            except KeeperGone:
                continue
            except KeeperFailed as exc:
                failure = exc
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """End them, and so close everything that they hold.  No other keeper is started."""
        self._is_over = True
        if not self._is_begun:
            self._find()
        async with trio.open_nursery() as nursery:
            for keeper in self._keepers.values():
                nursery.start_soon(keeper.stop)
        self._keepers.clear()
        self._collect()

    async def watch(self) -> None:
        """Detect the deaths of keepers.  Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            for keeper in self._keepers.values():
                nursery.start_soon(self._watch, keeper)
            self._nursery = nursery
            try:
                await self._tidy()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Close the connections; the keepers continue to run."""
        for keeper in self._keepers.values():
            keeper.close()

    # -- Owner, for each keeper ------------------------------------------------------------------------------------------

    def known(self, number: int) -> ProcessId | None:
        return self._known.get(number)

    def met(self, number: int, process: ProcessId) -> None:
        self._known[number] = process
        try:
            self._memory.save_keeper(number, process)
        except UnusablePath as exc:  # if its socket is removed, the next mpsd does not end it
            log.error("store.failed", statement="which process is the vault's keeper", why=str(exc))

    def listed(self, keeper: VaultKeeper) -> None:
        if keeper.most_held * MOST_KEEPERS < self._most:
            log.warning("vault.few_descriptors", wanted=self._most, found=keeper.most_held * MOST_KEEPERS)
        is_new = keeper.number not in self._keepers
        if is_new:
            self._add(keeper)
        if keeper.names or not is_new:
            self._compare()

    def gone(self, keeper: VaultKeeper) -> None:
        if self._keepers.get(keeper.number) is keeper:
            del self._keepers[keeper.number]
        self._compare()

    # -- choice of a keeper ----------------------------------------------------------------------------------------------

    def _by_keeper(self, names: Sequence[str]) -> Iterator[tuple[VaultKeeper, list[str]]]:
        for keeper in list(self._keepers.values()):
            if some := [name for name in names if name in keeper.names]:
                yield keeper, some

    async def _with_room(self, count: int, beside: str | None) -> VaultKeeper:
        """Return a keeper with room.  Raise KeeperFailed, NoRoom or Stopping."""
        if (found := self._find_room(count, beside)) is not None:
            return found
        async with self._starting:
            if (found := self._find_room(count, beside)) is None:  # else another task has started it
                found = await self._start()
        return found

    def _find_room(self, count: int, beside: str | None) -> VaultKeeper | None:
        """Return the keeper of `beside` if it has room, else the emptiest: it may have room for a whole arena."""
        found = [each for each in self._keepers.values() if each.room >= count and not each.is_silent]
        if beside is not None and (same := [each for each in found if beside in each.names]):
            return same[0]
        return max(found, key=lambda each: each.room, default=None)

    async def _start(self) -> VaultKeeper:
        if self._is_over:
            raise Stopping("mpsd is quitting, and its vault has ended")
        most = sum(keeper.most_held for keeper in self._keepers.values())
        if most >= self._most or len(self._keepers) == MOST_KEEPERS:
            if any(keeper.is_silent for keeper in self._keepers.values()):
                raise KeeperFailed(f"of the vault's {len(self._keepers)} keepers none that answers has room")
            raise NoRoom(f"the vault's keepers, {len(self._keepers)}, can hold {most} descriptors, and hold {self.held}")
        number = min(set(range(MOST_KEEPERS)) - set(self._keepers))
        keeper = VaultKeeper(number, self._path_of(number), self._most, self)
        await keeper.start(partial(self._launch, number))
        return keeper

    async def _launch(self, number: int) -> None:
        self._collect()
        start = partial(start_keeper, self._inspector, self._program, self._path_of(number), self._most)
        self._processes.append(await run_in_thread(start))

    def _path_of(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{number}") if number else self._path

    def _find(self) -> None:
        """Add the keepers that an earlier mpsd started."""
        for number in range(MOST_KEEPERS):
            if number not in self._keepers and (number in self._known or self._path_of(number).exists()):
                self._add(VaultKeeper(number, self._path_of(number), self._most, self))

    def _add(self, keeper: VaultKeeper) -> None:
        self._keepers[keeper.number] = keeper
        if self._nursery is not None:
            self._nursery.start_soon(self._watch, keeper)

    async def _watch(self, keeper: VaultKeeper) -> None:
        await keeper.watch()
        self._collect()

    def _collect(self) -> None:
        for process in [process for process in self._processes if process.has_ended()]:
            process.reap()
            self._processes.remove(process)

    # -- comparison ------------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare at once; names that should not be held are dropped soon."""
        if self._is_over or not self._is_begun:
            return
        held = set().union(*(keeper.names for keeper in self._keepers.values()))
        is_all = all(keeper.is_listed for keeper in self._keepers.values())
        try:
            self._surplus += self._compare_with(held, is_all)
            self._is_uncompared = False
        except UnusablePath as exc:
            log.error("store.failed", statement="what the vault's keepers held", why=str(exc))
            self._is_uncompared = True
        self._work.set()

    async def _tidy(self) -> None:
        while True:
            await self._work.wait()  # for ever: there may never be a loss
            self._work = trio.Event()
            await self._give_back()
            if self._is_uncompared:
                await trio.sleep(_AGAIN_SECONDS)
                self._compare()

    async def _give_back(self) -> None:
        names, self._surplus = self._surplus, []
        try:
            await self.drop(names)
        except KeeperFailed as exc:  # they are surplus again when the keeper is reached again
            log.warning("vault.drop_later", count=len(names), why=str(exc))


async def _reach(keeper: VaultKeeper) -> None:
    """Reach the keeper; if it is silent, its `watch` repeats that."""
    with suppress(KeeperFailed):
        await keeper.reach()


def _number_of(socket: str) -> int:
    """Return the number of the keeper with the socket of this name."""
    digits = socket.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0
