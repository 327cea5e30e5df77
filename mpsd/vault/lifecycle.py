"""Run the vault as long as mpsd, and end it with mpsd.

    start    the stored arenas are loaded; the running keepers are reached, and compared; the holders of arenas are waited for
    kill -9  nothing changes: the keepers and the rows stay, and the next mpsd starts with them
    quit     "free": everything is freed.  "keep": as after a kill

A keeper is started for the first descriptor that no other keeper has room for.
"""

import math
from collections.abc import Mapping

import structlog
import trio
from msgspec import Struct

from mpsd.errors import KeeperFailed, UnusablePath
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.model.arena import KeeperView
from mpsd.model.process import ProcessId
from mpsd.vault.arenas import Arenas
from mpsd.vault.catalog import Catalog
from mpsd.vault.fencing import ArenaHolders
from mpsd.vault.reclaim import Reclaimer
from mpsd.vault.rules.settings import VaultSettings
from mpsd.vault.store import VaultStore

log = structlog.get_logger()
_LOOK_SECONDS = 60.0  # the machine's clock may be set forward
_AGAIN_SECONDS = 5.0  # until a failed store is tried again
_STOP_SECONDS = 20.0


class Vault(Struct):
    """The parts of the vault, joined."""

    arenas: Arenas
    catalog: Catalog
    store: VaultStore
    keeper: VaultKeepers
    holders: ArenaHolders
    reclaimer: Reclaimer
    before: Mapping[ProcessId, int]  # the mpsds that had this vault before, and have not ended; until when, in clock ticks

    def view(self) -> KeeperView:
        return KeeperView(self.keeper.state, tuple(self.keeper.pids), self.keeper.held)

    def configure(self, settings: VaultSettings) -> None:
        self.catalog.settings = settings

    async def run(self) -> None:
        """Run until cancelled."""
        self.reclaimer.forget(self.store.removed())
        uids = self.store.holder_uids()
        for entry in self.catalog.by_id.values():
            for process in filter(None, (entry.arena.writer, *entry.arena.readers)):
                self.holders.restore(process, uids[process])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.watch)
            nursery.start_soon(self.reclaimer.run)
            nursery.start_soon(self.holders.run, self.before, self._gone)
            nursery.start_soon(self._expire)
            await self._reach()

    async def end(self) -> None:
        """End the vault: mpsd quits, and the domains have ended."""
        if self.catalog.settings.is_kept:
            return
        self.arenas.is_over = True
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_SECONDS):
                await self.keeper.stop()
            self.store.remove_all()
        except UnusablePath as exc:  # the next mpsd finds that their memory is lost
            log.error("store.failed", statement="all arenas are gone", why=str(exc))

    async def _reach(self) -> None:
        try:
            await self.keeper.reach()
        except KeeperFailed as exc:
            log.error("vault.keeper_silent", why=str(exc))
        self.arenas.ready.set()

    async def _gone(self, process: ProcessId, seconds: float) -> None:
        while True:
            try:
                return await self.arenas.ended(process, seconds)
            except UnusablePath as exc:  # no process is admitted in its place until it is stored
                log.error("store.failed", statement="the end of a process with arenas", why=str(exc))
                await trio.sleep(_AGAIN_SECONDS)

    async def _expire(self) -> None:
        await self.arenas.ready.wait()
        while True:
            now, ends = self.catalog.parts.clock(), self.catalog.ends
            for arena_id in [arena_id for arena_id, end in ends.items() if end <= now]:
                self._expire_one(arena_id, now)
            left = max(0.0, min(ends.values(), default=math.inf) - now)
            with trio.move_on_after(min(left, _LOOK_SECONDS if ends else math.inf)):
                await self.catalog.schedule_changed.wait()

    def _expire_one(self, arena_id: int, now: float) -> None:
        self.catalog.schedule(self.catalog.by_id[arena_id].arena)  # a process may have it open
        if self.catalog.ends.get(arena_id, math.inf) > now:
            return
        try:
            self.arenas.expire(arena_id)
        except UnusablePath as exc:
            log.error("store.failed", statement="an arena whose time is over", why=str(exc))
            self.catalog.ends[arena_id] = now + _AGAIN_SECONDS
