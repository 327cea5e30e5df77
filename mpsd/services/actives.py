"""The actives of services, stored: one that hangs while mpsd is killed and started again does not join again.

The next mpsd has to know it, and how long it may be silent, to fence it.
"""

from collections.abc import Callable, Collection

import structlog

from mpsd.errors import UnusablePath
from mpsd.services.members import ServiceRecord
from mpsd.services.store import Active, ServiceStore

log = structlog.get_logger()


class Actives:
    """Guards that the stored active of a service is the one that writes its arena now.

    A write that failed is not repeated: a later mpsd then treats that active as one without a heartbeat.
    """

    def __init__(self, store: ServiceStore, arenas: Collection[int]) -> None:
        """Load the stored actives.  Raises UnusablePath."""
        self._store, self._known = store, store.actives(arenas)

    def note(self, record: ServiceRecord) -> None:
        """Store the active if it has changed; it is read only by the next mpsd."""
        arena_id, member = record.arena.id, record.service.member(record.service.writer)
        if record.is_removed:
            self._forget(record)
            return
        if member is None or member.process != record.arena.writer:
            return  # what is stored is of another generation
        active = Active(member.process, record.arena.generation, member.rank, record.heartbeat_seconds)
        if active != self._known.get(arena_id):
            self._known[arena_id] = active
            self._try("the active of a service", lambda: self._store.save_active(arena_id, active))

    def absent(self, record: ServiceRecord) -> Active | None:
        """Return the active of an earlier mpsd that still writes the arena, and has not joined this one.

        None also if mpsd expects no heartbeat from it, and for a process that has opened the arena by itself since.
        """
        active, arena = self._known.get(record.arena.id), record.arena
        if active is None or not active.heartbeat_seconds or record.service.holder != active.process:
            return None
        return active if (arena.writer, arena.generation) == (active.process, active.generation) else None

    def _forget(self, record: ServiceRecord) -> None:
        """Forget the active, unless it still writes: the record may be made again, by the next member that joins."""
        known, arena_id = self._known.get(record.arena.id), record.arena.id
        if known is not None and known.process != record.service.holder:
            del self._known[arena_id]
            self._try("the active of a service that has gone", lambda: self._store.forget_active(arena_id))

    def _try(self, what: str, write: Callable[[], None]) -> None:
        try:
            write()
        except UnusablePath as exc:
            log.error("store.failed", statement=what, why=str(exc))
