"""Which ended clients still have GPU memory.

After a contained exception the sentinel has their descriptors open: the memory is free once the sentinel has ended, with the
domain or before it.  In any domain mpsd itself can hold those of a client that was killed (uvm/client_watch.py), and a child
that a client forked can have them: the memory is taken until mpsd has closed them, and until the server, asked after the
client's end, does not list it.
Prose: docs/leases.md, "When the memory of an ended client is not free".
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from mpsd.domains.domain import Domain
from mpsd.domains.listed import may_be_listed, may_be_used
from mpsd.domains.store import SqliteStore
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.notify import Signal

_CLOSED = (DomainState.CONTAINED, DomainState.STOPPING, DomainState.DEAD)  # DEAD: its sentinel ends a little later


class RetainedMemory:
    """Guards that each of these clients is reported free once its memory can be used again, and never before.

    changed: waits for a change of any domain.  is_held: whether mpsd has descriptors of the client.  until_released: returns
    once it has closed them.
    """

    def __init__(self, store: SqliteStore, domains: Mapping[str, Domain], changed: Callable[[], Awaitable[None]]) -> None:
        self.freed: Signal[[ProcessId]] = Signal()
        self.has_adopted = False  # mpsd has taken over the domains of an earlier mpsd
        self._store = store
        self._domains = domains
        self._changed = changed
        self._clients: set[ProcessId] = set()
        self.is_held: Callable[[ProcessId], bool] = lambda process: False
        self.until_released: Callable[[ProcessId], Awaitable[None]] = _at_once

    def has(self, process: ProcessId) -> bool:
        """Return whether the memory of this ended client may be taken; before the domains are adopted: if it was in one."""
        if process in self._clients or (not self.has_adopted and self._store.is_member(process)):
            return True
        homes = [domain for domain in self._domains.values() if may_be_used(domain, process)]
        return self._is_retained(homes, process, trio.current_time())

    def note_end(self, homes: Sequence[Domain], process: ProcessId, nursery: trio.Nursery) -> bool:
        """Return whether the memory of this client, which has just ended, is retained; homes: where it may have a channel."""
        if not self._is_retained(homes, process, trio.current_time()):
            return False
        self._keep(homes, process, nursery)
        return True

    def _is_retained(self, homes: Sequence[Domain], process: ProcessId, ended_at: float) -> bool:
        return self.is_held(process) or any(_is_retaining(domain, process, ended_at) for domain in homes)

    def adopt(self, domain: Domain, nursery: trio.Nursery) -> None:
        """Take over the clients that have ended in a domain of an earlier mpsd; whether it is contained, and whom its servers
        list, is not known yet."""
        for process, uid in self._store.members(domain.name):
            if not processes.is_alive(process):
                domain.admit(process)
                domain.uids[process] = uid
                self._keep([domain], process, nursery)

    def _keep(self, homes: Sequence[Domain], process: ProcessId, nursery: trio.Nursery) -> None:
        self._clients.add(process)
        nursery.start_soon(self._wait_freed, homes, process)

    async def _wait_freed(self, homes: Sequence[Domain], process: ProcessId) -> None:
        ended_at = trio.current_time()
        await self.until_released(process)
        while any(_is_retaining(domain, process, ended_at) for domain in homes):
            await self._changed()  # until the end of the domain, or of the children
        self._clients.discard(process)
        self._store.forget_member(process)
        self.freed.emit(process)


async def _at_once(process: ProcessId) -> None:
    """Stand for the release of a client of which mpsd holds nothing."""


def _is_retaining(domain: Domain, process: ProcessId, ended_at: float) -> bool:
    """Return whether the memory of this client may stay taken after its end at this trio time, or before it.

    Of a domain that mpsd is adopting this is not known yet.
    """
    has_sentinel = domain.state in _CLOSED and bool(domain.sentinel.pids)
    may_be_left = domain.is_adopted or may_be_listed(domain, process, ended_at)
    return has_sentinel or (domain.state is not DomainState.GONE and may_be_left)
