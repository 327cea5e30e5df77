"""Free the memory that belongs to no arena any more: drop in the keepers, in order, what is no longer stored.

If a keeper does not answer, its part is dropped when mpsd reaches it again and compares its contents.
"""

from collections import deque
from collections.abc import Callable, Iterable

import structlog
import trio

from mpsd.errors import KeeperFailed, UnusablePath
from mpsd.fairness.turns import Turns
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.model.arena import Arena
from mpsd.notify import Changed
from mpsd.vault.store import VaultStore

log = structlog.get_logger()
_TURN = 256  # names of one user; then others have a turn


class Reclaimer:
    """Guards that each drop is carried out even if the task that requested it is cancelled, and that no user waits for all of
    another's.

    share: the uid that stands for the arena's user.
    """

    def __init__(self, keeper: VaultKeepers, store: VaultStore, share: Callable[[Arena], int]) -> None:
        self._keeper = keeper
        self._store = store
        self._share = share
        self._names: Turns[tuple[int, list[str]]] = Turns()
        self._arenas: deque[int] = deque()
        self._added = Changed()
        self._given = 0  # turns
        self._open: dict[int, deque[int]] = {}  # by user: their turns that have not ended, by number, in order
        self._progress = Changed()

    def drop(self, arena: Arena, names: Iterable[str]) -> None:
        """Drop these names, which were the arena's."""
        share, every = self._share(arena), list(names)
        for first in range(0, len(every), _TURN):
            self._given += 1
            self._open.setdefault(share, deque()).append(self._given)
            self._names.put(share, (share, every[first : first + _TURN]))
        self._added.notify()

    def forget(self, arena_ids: Iterable[int]) -> None:
        """Forget the stored allocations that were removed, of these arenas."""
        self._arenas.extend(arena_ids)
        self._added.notify()

    async def settled(self, arena: Arena) -> None:
        """Wait until all names that were given so far for the arena's user have been dropped, or will be when their keeper is
        reached again."""
        share, until = self._share(arena), self._given
        while (turns := self._open.get(share)) and turns[0] <= until:
            await self._progress.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            while not (self._names or self._arenas):
                await self._added.wait()  # for ever: there may never be a drop
            if self._names:
                [(share, names)] = self._names.take(1)
                await self._drop(share, names)
            if self._arenas:  # after each turn: users who drop all the time must not keep the rows
                self._forget()
                await trio.lowlevel.checkpoint()

    async def _drop(self, share: int, names: list[str]) -> None:
        try:
            await self._keeper.drop(names)
        except KeeperFailed as exc:
            log.warning("vault.drop_later", count=len(names), why=str(exc))
        turns = self._open[share]
        turns.popleft()
        if not turns:
            del self._open[share]
        self._progress.notify()

    def _forget(self) -> None:
        """Forget some rows of one arena."""
        try:
            if not self._store.forget_allocations(self._arenas[0]):
                self._arenas.popleft()
        except UnusablePath as exc:  # the next mpsd finds them
            log.error("store.failed", statement="removed allocations", why=str(exc))
            self._arenas.clear()
