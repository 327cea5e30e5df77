"""queue.list: leases that wait for room, clients that wait for admission, and clients that wait for a fault domain."""

from collections.abc import Iterator
from itertools import islice

from mpsd.api.call import Call, Rows
from mpsd.api.methods import leases
from mpsd.api.ports import Ports
from mpsd.leases.rules.queue import QueueEntry
from mpsd.wire import lease_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import Page
from mpsd.wire.plain import process_facts

_NOBODY = -1  # the uid of no user


def all_waiting(services: Ports, after: int = 0, pid: int | None = None) -> Iterator[QueueEntry]:
    """Yield the admission queue in its order; after it the clients that have left it and wait for a domain.

    after: leave out the positions up to this one.  pid: yield only this client.
    """
    queue = services.leases.queue()
    for each in queue:
        process = each.process
        if each.position > after and (pid is None or (process is not None and process.pid == pid)):
            yield each
    last = max((each.position for each in queue), default=0)
    skipped = max(0, after - last)
    for position, client in enumerate(islice(services.domains.waiting(), skipped, None), last + skipped + 1):
        if pid in (None, client.process.pid):
            grant = services.leases.grant_of(client.process)
            lease_id = grant.lease_id if grant else None
            yield QueueEntry(position, client.uid, lease_id, client.process, client.reason, client.waited_seconds, None)


def list_queue(call: Call[Page]) -> Rows[QueueEntry]:
    entries = all_waiting(call.services, call.ask.after or 0)
    return Rows(((entry.position, _owner(call, entry), entry) for entry in entries), _show)


def _owner(call: Call[Page], entry: QueueEntry) -> int:
    """Return the owner's uid; of a lease that the caller may not see though it has that uid, the uid of no user."""
    if entry.process is None and entry.lease_id is not None and entry.uid == call.peer.uid:
        return entry.uid if leases.may_see(call.peer, call.services.leases.find(entry.lease_id)) else _NOBODY
    return entry.uid


def _show(entry: QueueEntry) -> Map:
    return lease_results.WAITING.of(entry, **process_facts(entry.process))
