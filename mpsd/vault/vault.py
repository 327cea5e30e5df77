"""The vault's life: what runs of it as long as mpsd, and what becomes of it when mpsd ends.

    start    what is stored is loaded; the keepers that run are reached, and compared; who held arenas is waited for again
    kill -9  nothing: the keepers and the rows stay, and the next mpsd starts with them
    quit     "free": everything goes.  "keep": as after a kill

A keeper is started by the first descriptor that no other one has room for.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import trio

from mpsd.api.services import KeeperView
from mpsd.errors import BadRequest, KeeperFailed, NoRoom, UnusablePath
from mpsd.model import ProcessId
from mpsd.policy.arena_settings import VaultSettings
from mpsd.runtime.stored import Stored
from mpsd.vault.arenas import Arenas
from mpsd.vault.descriptors import CheckMemory
from mpsd.vault.holders import Holders
from mpsd.vault.janitor import Janitor
from mpsd.vault.keeper import Item
from mpsd.vault.keepers import VaultKeepers
from mpsd.vault.shelf import Shelf
from mpsd.vault.store import VaultStore

log = structlog.get_logger()
_AGAIN_SECONDS = 5.0  # until what could not be stored is tried again
_STOP_SECONDS = 20.0


@dataclass(slots=True)
class Vault:
    """What mpsd runs of it, joined."""

    arenas: Arenas
    shelf: Shelf
    store: VaultStore
    keeper: VaultKeepers
    holders: Holders
    janitor: Janitor
    before: ProcessId | None  # the mpsd that had this vault before
    check_memory: CheckMemory
    stored: Sequence[Stored] = ()  # what systemd passed

    def view(self) -> KeeperView:
        return KeeperView(self.keeper.state, tuple(self.keeper.pids), self.keeper.held)

    def configure(self, settings: VaultSettings) -> None:
        self.shelf.settings = settings

    async def run(self) -> None:
        """Until cancelled."""
        self.janitor.forget(self.store.removed())
        for entry in self.shelf.by_id.values():
            for process in filter(None, (entry.arena.writer, *entry.arena.readers)):
                self.holders.restore(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.watch)
            nursery.start_soon(self.janitor.run)
            nursery.start_soon(self.holders.run, self.before, self._gone)
            nursery.start_soon(self._expire)
            await self._reach()
            await self._forget_stored()

    async def end(self) -> None:
        """mpsd quits, and the domains have ended."""
        if self.shelf.settings.is_kept:
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
            await self.keeper.reach(self._handed())
        except (KeeperFailed, NoRoom) as exc:
            log.error("vault.keeper_silent", why=str(exc))
        else:
            self.shelf.forgotten += [each.name for each in self.stored]  # keepers have them, or nobody wants them
        for each in self.stored:
            os.close(each.descriptor)
        self.stored = ()
        self.arenas.ready.set()

    def _handed(self) -> list[Item]:
        """What systemd kept for a keeper of this vault; what it is, is told by its name."""
        found = []
        for each in self.stored:
            if each.entry is not None and self._is_ours(each.entry.name, each.descriptor):
                found.append(Item(each.entry.name, each.descriptor, each.entry.size))
        if self.stored:
            log.info("vault.handed", found=len(self.stored), taken=len(found))
        return found

    def _is_ours(self, name: str, descriptor: int) -> bool:
        if not name.startswith("m."):
            return name.startswith(("l.", "s."))
        try:
            self.check_memory(descriptor)
        except BadRequest:
            return False
        return True

    async def _forget_stored(self) -> None:
        """systemd's copies of what is held elsewhere, or was lost: they would be memory that nobody can give back."""
        while True:
            self.shelf.lost = trio.Event()
            if names := self.shelf.forgotten:
                self.shelf.forgotten = []
                await trio.to_thread.run_sync(self.shelf.around.forget_stored, names)
            await self.shelf.lost.wait()  # for ever: nothing may ever be lost

    async def _gone(self, process: ProcessId, seconds: float) -> None:
        while True:
            try:
                return await self.arenas.ended(process, seconds)
            except UnusablePath as exc:  # nobody is admitted in its place until it is stored
                log.error("store.failed", statement="the end of a process with arenas", why=str(exc))
                await trio.sleep(_AGAIN_SECONDS)

    async def _expire(self) -> None:
        await self.arenas.ready.wait()
        while True:
            changed = self.shelf.schedule_changed = trio.Event()
            now, ends = self.shelf.around.clock(), self.shelf.ends
            for arena_id in [arena_id for arena_id, end in ends.items() if end <= now]:
                self._expire_one(arena_id, now)
            with trio.move_on_after(max(0.0, min(ends.values(), default=math.inf) - now)):
                await changed.wait()

    def _expire_one(self, arena_id: int, now: float) -> None:
        self.shelf.schedule(self.shelf.by_id[arena_id].arena)  # somebody may have it open
        if self.shelf.ends.get(arena_id, math.inf) > now:
            return
        try:
            self.arenas.expire(arena_id)
        except UnusablePath as exc:
            log.error("store.failed", statement="an arena whose time is over", why=str(exc))
            self.shelf.ends[arena_id] = now + _AGAIN_SECONDS
