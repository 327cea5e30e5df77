"""Free the memory that belongs to no arena any more: drop in the keepers, in order, what is no longer stored.

If a keeper does not answer, its part is dropped when mpsd reaches it again and compares its contents.
"""

from collections import deque
from collections.abc import Iterable

import structlog
import trio

from mpsd.errors import KeeperFailed, UnusablePath
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.notify import Changed
from mpsd.vault.store import VaultStore

log = structlog.get_logger()


class Reclaimer:
    """Guards that each drop is carried out even if the task that requested it is cancelled."""

    def __init__(self, keeper: VaultKeepers, store: VaultStore) -> None:
        self._keeper = keeper
        self._store = store
        self._names: deque[list[str]] = deque()
        self._arenas: deque[int] = deque()
        self._added = Changed()
        self._done = 0  # batches
        self._given = 0
        self._progress = Changed()

    def drop(self, names: Iterable[str]) -> None:
        if batch := list(names):
            self._names.append(batch)
            self._given += 1
            self._added.notify()

    def forget(self, arena_ids: Iterable[int]) -> None:
        """Forget the stored allocations of removed arenas."""
        self._arenas.extend(arena_ids)
        self._added.notify()

    async def settled(self) -> None:
        """Wait until all names given so far have been dropped, or will be when their keeper is reached again."""
        until = self._given
        while self._done < until:
            await self._progress.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            while not (self._names or self._arenas):
                await self._added.wait()  # for ever: there may never be a drop
            while self._names:
                await self._drop(self._names.popleft())
            await self._forget()

    async def _drop(self, names: list[str]) -> None:
        try:
            await self._keeper.drop(names)
        except KeeperFailed as exc:
            log.warning("vault.drop_later", count=len(names), why=str(exc))
        self._done += 1
        self._progress.notify()

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
