"""Gives the memory back that belongs to nobody any more: what was forgotten on disk is dropped in the keepers, in order.

With a keeper that does not answer it goes when that is reached again: it is compared then.
"""

from collections import deque
from collections.abc import Iterable

import structlog
import trio

from mpsd.errors import KeeperFailed, UnusablePath
from mpsd.vault.keepers import VaultKeepers
from mpsd.vault.store import VaultStore

log = structlog.get_logger()


class Janitor:
    """Guards that what it was told is dropped also when whoever told it goes away."""

    def __init__(self, keeper: VaultKeepers, store: VaultStore) -> None:
        self._keeper = keeper
        self._store = store
        self._names: deque[list[str]] = deque()
        self._arenas: deque[int] = deque()
        self._work = trio.Event()
        self._done = 0  # batches
        self._given = 0
        self._progress = trio.Event()

    def drop(self, names: Iterable[str]) -> None:
        if batch := list(names):
            self._names.append(batch)
            self._given += 1
            self._work.set()

    def forget(self, arena_ids: Iterable[int]) -> None:
        """Allocations of arenas that are gone."""
        self._arenas.extend(arena_ids)
        self._work.set()

    async def settled(self) -> None:
        """What was given until now has been dropped, or will be when its keeper is reached again."""
        until = self._given
        while self._done < until:
            await self._progress.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()  # for ever: nothing may ever be dropped
            self._work = trio.Event()
            while self._names:
                await self._drop(self._names.popleft())
            await self._forget()

    async def _drop(self, names: list[str]) -> None:
        try:
            await self._keeper.drop(names)
        except KeeperFailed as exc:
            log.warning("vault.drop_later", count=len(names), why=str(exc))
        self._done += 1
        self._progress.set()
        self._progress = trio.Event()

    async def _forget(self) -> None:
        try:
            while self._arenas and not self._names:
                if self._store.forget_allocations(self._arenas[0]):
                    await trio.lowlevel.checkpoint()
                else:
                    self._arenas.popleft()
        except UnusablePath as exc:  # the next mpsd finds them
            log.error("store.failed", statement="allocations of a removed arena", why=str(exc))
            self._arenas.clear()
