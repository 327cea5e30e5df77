"""queue.list: leases that wait for room, clients that wait for admission, and clients that wait for a fault domain."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from mpsd.api.call import Call, Rows
from mpsd.api.ports import Ports
from mpsd.model.process import ProcessId
from mpsd.wire import lease_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import Page
from mpsd.wire.plain import process_facts


class WaitingRow(Struct, frozen=True):
    """A waiting lease or client.  process: None for a lease.  lease_id: the lease that waits, or the client's."""

    position: int
    uid: int
    lease_id: int | None
    process: ProcessId | None
    reason: str
    waited_seconds: float
    deadline: float | None


def all_waiting(services: Ports, after: int = 0, pid: int | None = None) -> Iterator[WaitingRow]:
    """Yield the admission queue in its order; after it the clients that have left it and wait for a domain.

    after: leave out the positions up to this one.  pid: yield only this client.
    """
    queue = services.leases.queue()
    for each in queue:
        process = each.process
        if each.position > after and (pid is None or (process is not None and process.pid == pid)):
            yield WaitingRow(each.position, each.uid, each.lease_id, process, each.reason, each.waited_seconds, each.deadline)
    last = max((each.position for each in queue), default=0)
    skipped = max(0, after - last)
    for position, client in enumerate(islice(services.domains.waiting(), skipped, None), last + skipped + 1):
        if pid in (None, client.process.pid):
            grant = services.leases.grant_of(client.process)
            lease_id = grant.lease_id if grant else None
            yield WaitingRow(position, client.uid, lease_id, client.process, client.reason, client.waited_seconds, None)


def list_queue(call: Call[Page]) -> Rows[WaitingRow]:
    return Rows(((entry.position, entry.uid, entry) for entry in all_waiting(call.services, call.ask.after or 0)), _show)


def _show(entry: WaitingRow) -> Map:
    return lease_results.WAITING.of(entry, **process_facts(entry.process))
